//! Names of servers, projects, tools and prompts, each with its own type.
//!
//! Invariants: a [`ServerName`] or [`ProjectId`] is always valid. [`NativeName`] (as the server gave it) and
//! [`ExposedName`] (as clients see it) never convert into each other; only [`crate::naming`] and the catalog know which
//! belong together.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Maximum length of a server name or project id, in characters.
const MAX_CHARS: usize = 64;

/// The unique name of a configured server: 1 to 64 characters, no control characters, no `/`, and neither `.` nor `..`,
/// so that it can be a segment of a path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct ServerName(Arc<str>);

/// The id of a project: `[A-Za-z0-9_-]{1,64}`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct ProjectId(Arc<str>);

/// The name of a tool or prompt as given by its server. Any string.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NativeName(Arc<str>);

/// The name of a tool or prompt as clients see it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ExposedName(Arc<str>);

/// A tool of a server, written `server/tool`. The first slash is the separator, because a server name cannot contain
/// one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ToolRef {
    pub server: ServerName,
    pub tool: NativeName,
}

/// Identifies a server. Servers of two projects may have the same name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerKey {
    /// The project that owns the server. `None`: the server comes from the configuration file.
    pub owner: Option<ProjectId>,
    pub name: ServerName,
}

/// Why a string is not a valid name. The message does not repeat the string.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    #[error("a name cannot be empty")]
    Empty,
    #[error("a name has at most 64 characters")]
    TooLong,
    #[error("a server name cannot contain control characters")]
    Control,
    #[error("a server name cannot contain `/`")]
    Slash,
    #[error("a server cannot be named `.` or `..`")]
    Dots,
    #[error("a project id consists of letters A-Z and a-z, digits, `_` and `-`")]
    ProjectCharacter,
    #[error("a tool is written as `server/tool`")]
    NotToolRef,
}

impl ServerName {
    /// # Errors
    /// If the string violates a rule of the type.
    pub fn parse(name: &str) -> Result<Self, InvalidName> {
        if name.is_empty() {
            return Err(InvalidName::Empty);
        }
        if name.chars().nth(MAX_CHARS).is_some() {
            return Err(InvalidName::TooLong);
        }
        if name.chars().any(char::is_control) {
            return Err(InvalidName::Control);
        }
        if name.contains('/') {
            return Err(InvalidName::Slash);
        }
        if name == "." || name == ".." {
            return Err(InvalidName::Dots);
        }
        Ok(Self(name.into()))
    }
}

impl ProjectId {
    /// # Errors
    /// If the string violates a rule of the type.
    pub fn parse(id: &str) -> Result<Self, InvalidName> {
        if id.is_empty() {
            return Err(InvalidName::Empty);
        }
        if !id
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
        {
            return Err(InvalidName::ProjectCharacter);
        }
        if id.len() > MAX_CHARS {
            return Err(InvalidName::TooLong);
        }
        Ok(Self(id.into()))
    }
}

impl NativeName {
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }
}

impl ExposedName {
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }
}

impl ToolRef {
    /// # Errors
    /// If there is no `/`, no tool after it, or no valid server name before it.
    pub fn parse(text: &str) -> Result<Self, InvalidName> {
        let (server, tool) = text.split_once('/').ok_or(InvalidName::NotToolRef)?;
        if tool.is_empty() {
            return Err(InvalidName::NotToolRef);
        }
        Ok(Self {
            server: ServerName::parse(server)?,
            tool: NativeName::new(tool),
        })
    }
}

impl ServerKey {
    /// The name used where servers of several projects are listed together: `project/server`, which is never a
    /// configured name.
    #[must_use]
    pub fn qualified(&self) -> ServerName {
        match &self.owner {
            Some(project) => ServerName(format!("{project}/{}", self.name).into()),
            None => self.name.clone(),
        }
    }
}

impl fmt::Display for ServerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.qualified(), f)
    }
}

impl fmt::Display for ToolRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.server, self.tool)
    }
}

macro_rules! string_like {
    ($($name:ident),*) => {$(
        impl $name {
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        /// The same text, not a copy.
        impl From<&$name> for Arc<str> {
            fn from(name: &$name) -> Self {
                name.0.clone()
            }
        }
    )*};
}

macro_rules! parsed {
    ($($name:ident),*) => {$(
        impl TryFrom<String> for $name {
            type Error = InvalidName;
            fn try_from(name: String) -> Result<Self, InvalidName> {
                Self::parse(&name)
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;
            fn from_str(name: &str) -> Result<Self, InvalidName> {
                Self::parse(name)
            }
        }
    )*};
}

// Four types with the same methods. One generic newtype would allow mixing up the four.
string_like!(ServerName, ProjectId, NativeName, ExposedName);
parsed!(ServerName, ProjectId, ToolRef);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_names() {
        let long = "n".repeat(64);
        let too_long = "n".repeat(65);
        for (name, expect) in [
            ("github", Ok(())),
            ("my server.v2", Ok(())),
            ("Zürich", Ok(())),
            (&long, Ok(())),
            ("", Err(InvalidName::Empty)),
            (&too_long, Err(InvalidName::TooLong)),
            ("a/b", Err(InvalidName::Slash)),
            ("a\nb", Err(InvalidName::Control)),
            (".", Err(InvalidName::Dots)),
            ("..", Err(InvalidName::Dots)),
        ] {
            assert_eq!(ServerName::parse(name).map(|_| ()), expect, "{name:?}");
        }
    }

    #[test]
    fn project_ids() {
        assert!(ProjectId::parse("Team_1-a").is_ok());
        for id in ["", "a b", "ä", "a/b", &"p".repeat(65)] {
            assert!(ProjectId::parse(id).is_err(), "{id:?}");
        }
    }

    #[test]
    fn tool_refs_split_at_the_first_slash() {
        let tool: ToolRef = "files/read/all".parse().unwrap();
        assert_eq!(tool.server.as_str(), "files");
        assert_eq!(tool.tool.as_str(), "read/all");
        assert_eq!(tool.to_string(), "files/read/all");
        for text in ["files", "files/", "/read", ""] {
            assert!(ToolRef::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn names_are_validated_when_deserialised() {
        assert!(serde_json::from_str::<ServerName>(r#""a/b""#).is_err());
        let name: ServerName = serde_json::from_str(r#""git""#).unwrap();
        assert_eq!(serde_json::to_string(&name).unwrap(), r#""git""#);
    }
}
