//! Quotas of a project.
//!
//! A key with the role `manage` can create these things, and all of them are read when the project is loaded, shown in
//! its lists and kept in memory. A replacement does not count. At the limit, new things are refused.

use model::ProjectId;

use crate::{
    error::{Error, Result},
    sql::{Key, Tx, row},
};

/// The limited things of a project.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Quota {
    /// Including those of products.
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
                "the project has 500 servers, which is the limit: remove one first",
            ),
            Self::Secrets => (
                MAX_OF_A_PROJECT,
                "the project has 500 secrets, which is the limit: remove one first",
            ),
            Self::Keys => (
                MAX_OF_A_PROJECT,
                "the project has 500 keys, which is the limit: revoke one first",
            ),
            Self::ToolSettings => (
                MAX_TOOL_SETTINGS,
                "the project has settings for 5000 tools, which is the limit: remove one first",
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

    /// Checks the quota after a thing was put, in the same transaction and with the project locked.
    ///
    /// # Errors
    /// [`Error::Conflict`] if the quota is exceeded. The caller must not commit the transaction.
    pub(crate) async fn check(self, tx: &mut Tx, project: &ProjectId, name: &str) -> Result<()> {
        let counted = row!(tx, (i64,), self.count(), Key(project.as_str()))?;
        let (most, why) = self.most();
        match counted {
            Some((count,)) if count > most => Err(Error::conflict(self.what(), name, why)),
            _ => Ok(()),
        }
    }
}
