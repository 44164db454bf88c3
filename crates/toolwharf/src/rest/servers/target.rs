//! Which server a request is about: `{id}` and `?project=`.
//!
//! Invariants: a server that the caller does not reach and one that is not there are refused in the same words. A name
//! means the installation's own server before it means a project's.

use std::sync::Arc;

use axum::{extract::FromRequestParts, http::request::Parts};
use engine::{Fleet, Scope, server::Server};
use model::{Declared, ProjectId, ServerKey, ServerName};
use store::{ServerRow, WorkspaceRow};

use crate::{
    auth::Principal,
    entries::hosted_by,
    rest::{Problem, Rest, access::admitted, answer::shown},
};

/// Where a server is declared.
#[derive(Clone)]
pub(in crate::rest) enum Home {
    /// In the configuration file.
    File,
    /// Among the servers of its project.
    Project(ServerRow),
    Registered(WorkspaceRow),
}

/// A server that is declared.
#[derive(Clone)]
pub(in crate::rest) struct Target {
    pub(in crate::rest) key: ServerKey,
    pub(in crate::rest) home: Home,
}

impl<S: Sync> FromRequestParts<S> for Target {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        admitted(parts, "server")
    }
}

impl From<ServerRow> for Target {
    fn from(row: ServerRow) -> Self {
        let (owner, name) = (Some(row.project_id.clone()), row.name.clone());
        let key = ServerKey { owner, name };
        let home = Home::Project(row);
        Self { key, home }
    }
}

impl From<WorkspaceRow> for Target {
    fn from(row: WorkspaceRow) -> Self {
        let (owner, name) = (hosted_by(&row), row.name.clone());
        let key = ServerKey { owner, name };
        let home = Home::Registered(row);
        Self { key, home }
    }
}

impl Target {
    pub(super) fn of_file(name: ServerName) -> Self {
        let key = ServerKey { owner: None, name };
        let home = Home::File;
        Self { key, home }
    }

    pub(in crate::rest) fn id(&self) -> String {
        match &self.home {
            Home::File => self.key.name.to_string(),
            Home::Project(row) => row.id.clone(),
            Home::Registered(row) => row.id.clone(),
        }
    }

    /// Its place in lists: first those of nobody, then by project, each by name.
    pub(super) fn place(&self) -> String {
        let owner = self.key.owner.as_ref().map_or("", ProjectId::as_str);
        format!("{owner}/{}/{}", self.key.name, self.id())
    }

    /// The id of the product that brought it.
    pub(in crate::rest) fn product(&self) -> Option<&String> {
        match &self.home {
            Home::Project(row) => row.product_id.as_ref(),
            Home::File | Home::Registered(_) => None,
        }
    }

    /// What its events are kept under.
    pub(super) fn events(&self) -> String {
        match &self.home {
            Home::Registered(row) => row.id.clone(),
            Home::File | Home::Project(_) => self.key.to_string(),
        }
    }

    /// The server as the gateway has it; `None` if it does not, because its project is off or it cannot be used.
    pub(in crate::rest) fn live(&self, fleet: &Fleet) -> Option<Arc<Server>> {
        let found = match &self.home {
            Home::Registered(row) => fleet.by_id(&row.id),
            Home::File | Home::Project(_) => fleet
                .get(&self.key)
                .filter(|server| server.spec.declared != Declared::Registered),
        };
        found.cloned()
    }
}

fn missing(id: &str) -> Problem {
    Problem::new(404, format!("there is no server `{}`", shown(id)))
}

impl Rest {
    /// The server that `id` means: its id, or a name that only one server has. Of one project only, if one is named: a
    /// project's key always names its own.
    ///
    /// # Errors
    /// 404 for servers that are not there, 409 for a name that several projects' servers have.
    pub(in crate::rest) async fn find(
        &self,
        project: Option<&ProjectId>,
        id: &str,
    ) -> Result<Target, Problem> {
        let name = ServerName::parse(id).ok();
        if let (None, Some(name)) = (project, &name)
            && self.server(name).is_ok()
        {
            return Ok(Target::of_file(name.clone()));
        }
        let store = self.projects.store();
        match store.workspace_get(project, id).await {
            Ok(row) => return Ok(row.into()),
            Err(store::Error::NotFound { .. } | store::Error::Invalid { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        match store.server_get_by_id(project, id).await {
            Ok(row) => return Ok(row.into()),
            Err(store::Error::NotFound { .. } | store::Error::Invalid { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let name = name.ok_or_else(|| missing(id))?;
        if let Some(project) = project {
            match store.server_get(project, &name).await {
                Ok(row) => return Ok(row.into()),
                Err(store::Error::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut named = self.targets(project).await?;
        named.retain(|target| target.key.name == name);
        if let Some(at) = named.iter().position(|target| target.key.owner.is_none()) {
            return Ok(named.swap_remove(at));
        }
        match named.len() {
            // It may stand in a file that is not in force.
            0 if project.is_none() && self.live.has(&name).await => Ok(Target::of_file(name)),
            0 => Err(missing(id)),
            1 => Ok(named.remove(0)),
            _ => {
                let ids: Vec<String> = named.iter().map(Self::said).collect();
                let ids = ids.join(", ");
                let why = format!(
                    "several projects have a server `{name}`: say which with `?project=` or by its id: {ids}"
                );
                Err(Problem::new(409, why))
            }
        }
    }

    fn said(target: &Target) -> String {
        let owner = target.key.owner.as_ref();
        let project = owner.map_or_else(String::new, |owner| format!(" ({owner})"));
        target.id() + &project
    }

    /// All servers that have a row: of a project, or of all there are.
    async fn targets(&self, project: Option<&ProjectId>) -> Result<Vec<Target>, Problem> {
        let store = self.projects.store();
        let mut registered = store.workspace_list_all().await?;
        registered.retain(|row| project.is_none() || hosted_by(row).as_ref() == project);
        let declared = match project {
            Some(project) => store.server_list(project).await?,
            None => store.server_list_all().await?,
        };
        let registered = registered.into_iter().map(Target::from);
        Ok(registered
            .chain(declared.into_iter().map(Target::from))
            .collect())
    }

    /// All servers, or those of one project.
    pub(in crate::rest) async fn all(
        &self,
        project: Option<&ProjectId>,
    ) -> Result<Vec<Target>, Problem> {
        let mut all = self.targets(project).await?;
        if project.is_none() {
            let of_file = self.gateway.servers();
            all.extend(
                of_file
                    .iter()
                    .map(|server| Target::of_file(server.name().clone())),
            );
        }
        Ok(all)
    }

    /// The server of a call, as the gateway has it. Most are found without the database.
    pub(in crate::rest) async fn called(
        &self,
        who: &Principal,
        id: &str,
    ) -> Result<Arc<Server>, Problem> {
        let fleet = self.gateway.fleet();
        let own = ServerName::parse(id).ok().and_then(|name| {
            let owner = who.project().ok()?.cloned();
            fleet.get(&ServerKey { owner, name })
        });
        let found = own.or_else(|| fleet.by_id(id));
        match found {
            Some(server) if server.spec.enabled && who.reaches(server.spec.owner.as_ref()) => {
                Ok(server.clone())
            }
            // Rare, and boxed: what answers a call is moved into its connection.
            _ => Box::pin(self.called_by_row(who, id)).await,
        }
    }

    async fn called_by_row(&self, who: &Principal, id: &str) -> Result<Arc<Server>, Problem> {
        let target = self.find(who.project()?, id).await?;
        self.enabled(&target).await
    }

    /// A server that the gateway has, and that is not switched off.
    pub(in crate::rest) async fn enabled(&self, target: &Target) -> Result<Arc<Server>, Problem> {
        self.taken_in(target).await?;
        let name = &target.key.name;
        match target.live(&self.gateway.fleet()) {
            Some(server) if server.spec.enabled => Ok(server),
            Some(_) => {
                let why = format!("server `{name}` is not enabled: `toolwharf enable {name}`");
                Err(Problem::new(409, why))
            }
            None => {
                let why = format!(
                    "server `{name}` cannot be used as it is declared, or its project is not enabled; see the log"
                );
                Err(Problem::new(409, why))
            }
        }
    }

    /// Makes sure that the gateway has the project of a server, if it is enabled.
    pub(in crate::rest) async fn taken_in(&self, target: &Target) -> Result<(), Problem> {
        let scope = Scope {
            project: target.key.owner.clone(),
            ..Scope::default()
        };
        if scope.project.is_some() {
            self.projects.admit(&scope).await?;
        }
        Ok(())
    }

    /// The server of the configuration file of that name.
    pub(in crate::rest) fn server(&self, name: &ServerName) -> Result<Arc<Server>, Problem> {
        let servers = self.gateway.servers();
        let found = servers.iter().find(|server| server.name() == name);
        found.cloned().ok_or_else(|| missing(name.as_str()))
    }
}
