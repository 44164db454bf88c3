//! The request and response types of the REST API, shared by the gateway and the command line.
//!
//! Deliberately absent: HTTP, and the code that fills the types.

mod attention;
mod browser;
mod call;
mod change;
mod chat;
mod client;
mod doctor;
mod key;
mod login;
mod problem;
mod product;
mod project;
mod registry;
mod replica;
mod request;
mod run;
mod schema;
mod secret;
mod server;
mod setting;
mod status;
mod tool;
mod update;
mod wrong;

pub use self::{
    attention::{Attention, Need, NeedKind},
    browser::BrowserLink,
    call::{
        Call, CallBucket, CallFigures, CallStatistics, CallSteps, Calls, CallsOfServer,
        CallsOfTool, WholeCall,
    },
    change::{Approvals, Change, Changes},
    chat::{ChatAnswers, ChatRequest, ConversationInfo, Conversations, WholeConversation},
    client::{Client, Clients, ConnectRequest, Connected, Disconnected},
    doctor::{Finding, Level, Report},
    key::{Key, Keys, MadeKey},
    login::{Login, LoginBegun, LoginRedirect, LoginRequest, LoginWay, Logins},
    problem::{McpError, Problem},
    product::{InstalledProduct, Product, Products, WholeProduct},
    project::{Project, ProjectConfig, Projects},
    registry::{
        InstallOption, InstallRequest, Installed, RegistryEntry, RegistryServer, RegistryServers,
        TriedTool,
    },
    replica::{Lease, Replica, Replicas},
    request::CallResult,
    run::{Run, Runs, WholeRun},
    schema::{
        RUN_STATUSES, any, call_status_value, name, project_id_value, project_role, tool_mode,
    },
    secret::{MasterKey, Secret, SecretValue, Secrets},
    server::{
        Confinement, Crash, DeclaredEntry, Enforced, EntryChange, Event, Events, FileAccess,
        Import, Imported, Limits, Loss, Port, RecordingRequest, Removed, Server, Servers, Unusable,
        Usage, VisibleFile,
    },
    setting::{OneSetting, Settings},
    status::{Audit, BackupOutcome, Backups, Certificate, Database, KeptBack, SavedTokens, Status},
    tool::{
        FieldScores, FoundBy, FoundTool, FoundTools, ListTokens, Quarantine, Set, Setting, Tool,
        Tools,
    },
    update::{ChangedTool, Update, UpdateRequest},
    wrong::Wrong,
};

/// A point in time.
pub type Time = chrono::DateTime<chrono::Utc>;
