//! How many things a project may have.
//!
//! Whoever has a project's key with the role `manage` may make them, and all of them are read when the project is taken
//! in, shown in its lists and kept in memory. What is replaced counts once; at the bound nothing new is taken.

use model::ProjectId;

use crate::{
    error::{Error, Result},
    sql::{Key, Tx, row},
};

/// Things of a project whose number is bounded.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Quota {
    /// Those of its products, too.
    Servers,
    Secrets,
    /// Keys that were not revoked.
    Keys,
    ToolSettings,
}

/// The most servers, the most secrets and the most keys of one project.
pub const MAX_OF_A_PROJECT: i64 = 500;
const MAX_TOOL_SETTINGS: i64 = 5_000;

impl Quota {
    fn what(self) -> &'static str {
        match self {
            Self::Servers => "server",
            Self::Secrets => "secret",
            Self::Keys => "key",
            Self::ToolSettings => "tool",
        }
    }

    fn most(self) -> (i64, &'static str) {
        match self {
            Self::Servers => (
                MAX_OF_A_PROJECT,
                "the project has 500 servers, the most there may be: remove one first",
            ),
            Self::Secrets => (
                MAX_OF_A_PROJECT,
                "the project has 500 secrets, the most there may be: remove one first",
            ),
            Self::Keys => (
                MAX_OF_A_PROJECT,
                "the project has 500 keys, the most there may be: revoke one first",
            ),
            Self::ToolSettings => (
                MAX_TOOL_SETTINGS,
                "the project has settings for 5000 tools, the most there may be: remove one first",
            ),
        }
    }

    fn count(self) -> &'static str {
        match self {
            Self::Servers => "SELECT COUNT(*) FROM kb.project_mcp_servers WHERE project_id = $1",
            Self::Secrets => "SELECT COUNT(*) FROM kb.secrets WHERE project_id = $1",
            Self::Keys => {
                "SELECT COUNT(*) FROM kb.api_keys WHERE project_id = $1 AND revoked_at IS NULL"
            }
            Self::ToolSettings => "SELECT COUNT(*) FROM kb.tool_settings WHERE project_id = $1",
        }
    }

    /// Checks after a thing was put, in the same transaction and with the project locked.
    ///
    /// # Errors
    /// [`Error::Conflict`] if it is one too many: then the transaction must not be committed.
    pub(crate) async fn check(self, tx: &mut Tx, project: &ProjectId, name: &str) -> Result<()> {
        let counted = row!(tx, (i64,), self.count(), Key(project.as_str()))?;
        let (most, why) = self.most();
        match counted {
            Some((count,)) if count > most => Err(Error::conflict(self.what(), name, why)),
            _ => Ok(()),
        }
    }
}
