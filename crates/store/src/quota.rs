//! Quotas of a project.
//!
//! A key with the role `manage` can create servers, secrets, keys and tool settings. All of them are read when the
//! project is loaded, shown in its lists and kept in memory. At the limit, new ones are refused; replacing one is
//! always possible.

use model::ProjectId;

use crate::{
    error::{Error, Result},
    sql::{Key, Tx, row},
};

/// The kinds of objects whose number is limited in each project.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Quota {
    /// Servers, including those of products.
    Servers,
    Secrets,
    /// Keys that are not revoked.
    Keys,
    ToolSettings,
}

/// Maximum number of servers, of secrets and of keys in one project.
pub const MAX_OF_A_PROJECT: i64 = 500;
const MAX_TOOL_SETTINGS: i64 = 5_000;

impl Quota {
    /// The name of the kind in errors, the query that counts it, the maximum, and the error if it is exceeded.
    fn parts(self) -> (&'static str, &'static str, i64, &'static str) {
        match self {
            Self::Servers => (
                "server",
                "SELECT COUNT(*) FROM kb.project_mcp_servers WHERE project_id = $1",
                MAX_OF_A_PROJECT,
                "the project has 500 servers, which is the limit: remove one first",
            ),
            Self::Secrets => (
                "secret",
                "SELECT COUNT(*) FROM kb.secrets WHERE project_id = $1",
                MAX_OF_A_PROJECT,
                "the project has 500 secrets, which is the limit: remove one first",
            ),
            Self::Keys => (
                "key",
                "SELECT COUNT(*) FROM kb.api_keys
                 WHERE revoked_at IS NULL AND (project_id = $1
                     OR id IN (SELECT key_id FROM kb.toolwharf_key_projects WHERE project_id = $1))",
                MAX_OF_A_PROJECT,
                "the project has 500 keys, which is the limit: revoke one first",
            ),
            Self::ToolSettings => (
                "tool",
                "SELECT COUNT(*) FROM kb.tool_settings WHERE project_id = $1",
                MAX_TOOL_SETTINGS,
                "the project has settings for 5000 tools, which is the limit: remove one first",
            ),
        }
    }

    /// Checks the quota after an object was added, in the same transaction and with the project locked.
    ///
    /// # Errors
    /// [`Error::Conflict`] if the quota is exceeded. The caller must not commit the transaction.
    pub(crate) async fn check(self, tx: &mut Tx, project: &ProjectId, name: &str) -> Result<()> {
        let (what, query, most, why) = self.parts();
        let counted = row!(tx, (i64,), query, Key(project.as_str()))?;
        match counted {
            Some((count,)) if count > most => Err(Error::conflict(what, name, why)),
            _ => Ok(()),
        }
    }
}
