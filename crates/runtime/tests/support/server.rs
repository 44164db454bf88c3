//! A server to run in a sandbox.

use std::collections::BTreeMap;

use model::{Launch, Place, Program, Reach, Sandbox};
use runtime::Unit;

#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) program: Program,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) reach: Reach,
    pub(crate) sandbox: Sandbox,
}

impl Server {
    pub(crate) fn new(id: &str, program: Program) -> Self {
        Self {
            program,
            env: BTreeMap::new(),
            reach: Reach::Streams,
            sandbox: Sandbox::new(id),
        }
    }

    pub(crate) fn unit(self) -> Unit {
        let launch = Launch {
            env: self.env,
            reach: self.reach,
            ..Launch::new(self.program, Place::Sandbox(self.sandbox))
        };
        Unit::new("test", launch)
    }
}
