//! The states that need a person: tools that are kept back, servers that do not run by themselves, sign-ins, and backups
//! and certificates that fail.
//!
//! This is the only place that decides it. The console, `toolwharf ls` and the event stream use its result.

use api::{Attention, Need, NeedKind};
use axum::{Extension, Json, extract::State};
use config::check_project;
use engine::{Fleet, Trouble, server::Server};
use lifecycle::Phase;
use model::{ProjectId, ServerKey};

use super::{
    AppState, Problem, Rest,
    access::{Who, Within},
    servers::{Source, Target},
};
use auth::{Principal, Role};
use backend::projects::entry;

/// Maximum number of needs in a response. The counts are complete.
const MAX_NEEDS: usize = 100;
/// Maximum length of a reason, in characters. It may quote a server's output.
const MAX_REASON_CHARS: usize = 500;

pub(super) async fn show(
    State(rest): State<AppState>,
    Extension(who): Who,
    Within(project): Within,
) -> Result<Json<Attention>, Problem> {
    let targets = rest.all(project.as_ref()).await?;
    let all = rest.attention(&who, project.as_ref(), &targets).await?;
    Ok(Json(all))
}

/// A need of one server: its kind, the number of tools, and the reason.
type Found = (NeedKind, usize, Option<String>);

impl Rest {
    /// Returns the needs of these servers, which are those of the project, or all. Disabled servers have none.
    pub(super) async fn attention(
        &self,
        who: &Principal,
        project: Option<&ProjectId>,
        targets: &[Target],
    ) -> Result<Attention, Problem> {
        let fleet = self.gateway.fleet();
        let mut all = Attention::default();
        for target in targets {
            let found = match target.live(&fleet) {
                Some(server) if !server.spec.enabled => continue,
                Some(server) => self.needs_of(&fleet, who, &server).await?,
                None => {
                    let why = unfit(target).into_iter();
                    why.map(|why| (NeedKind::Blocked, 0, Some(why))).collect()
                }
            };
            add(&mut all, target.id(), &target.key, found);
        }
        // A project sees servers that it does not own. Of these, only its own callers' sign-ins concern it.
        let lent = fleet.all().filter(|server| {
            let spec = &server.spec;
            project.is_some() && spec.owner.is_none() && spec.enabled && spec.is_in_project(project)
        });
        for server in lent {
            let expired = self.logins.expired(&server.spec, &who.id).await?;
            let found = expired.map(|why| (NeedKind::SignIn, 0, Some(why)));
            add(
                &mut all,
                server.spec.id(),
                server.key(),
                found.into_iter().collect(),
            );
        }
        if project.is_none() && who.may(Role::Admin, None) {
            let last = self.backups.get();
            let failing = last.as_ref().and_then(store::Backups::failing);
            all.backup = failing.and_then(|row| {
                let why = row.reason.as_ref()?;
                Some(why.chars().take(MAX_REASON_CHARS).collect())
            });
            let failing = self.front.tls().and_then(|tls| tls.failure());
            all.certificate = failing.map(|why| why.chars().take(MAX_REASON_CHARS).collect());
        }
        Ok(all)
    }

    async fn needs_of(
        &self,
        fleet: &Fleet,
        who: &Principal,
        server: &Server,
    ) -> Result<Vec<Found>, Problem> {
        let mut found = Vec::new();
        let tools = fleet.awaiting_approval(server);
        if tools > 0 {
            found.push((NeedKind::Approval, tools, None));
        }
        let status = server.status();
        let reason = status.reason.as_deref().map(str::to_owned);
        match (status.trouble, &server.spec.unusable) {
            (Some(Trouble::Blocked), _) => found.push((NeedKind::Blocked, 0, reason)),
            (Some(Trouble::Failed), _) => found.push((NeedKind::Failed, 0, reason)),
            (Some(Trouble::SignIn), _) => found.push((NeedKind::SignIn, 0, reason)),
            // It was not needed yet, so nothing has tried to start it.
            (None, Some(why)) if status.phase == Phase::Idle => {
                found.push((NeedKind::Blocked, 0, Some(why.clone())));
            }
            (None, _) => {
                let expired = self.logins.expired(&server.spec, &who.id).await?;
                found.extend(expired.map(|why| (NeedKind::SignIn, 0, Some(why))));
            }
        }
        Ok(found)
    }
}

/// Adds the needs of a server.
fn add(all: &mut Attention, id: String, key: &ServerKey, found: Vec<Found>) {
    all.tools += found.iter().map(|(_, tools, _)| tools).sum::<usize>();
    let any =
        |holds: fn(NeedKind) -> bool| usize::from(found.iter().any(|(what, ..)| holds(*what)));
    all.servers += any(|what| what != NeedKind::Approval);
    all.sign_ins += any(|what| what == NeedKind::SignIn);
    let room = MAX_NEEDS.saturating_sub(all.needs.len());
    let needs = found.into_iter().take(room);
    all.needs.extend(needs.map(|(what, tools, reason)| Need {
        id: id.clone(),
        server: key.name.to_string(),
        project: key.owner.as_ref().map(ToString::to_string),
        what,
        tools,
        reason: reason.map(|why| why.chars().take(MAX_REASON_CHARS).collect()),
    }));
}

/// Returns why a project's server that is not loaded cannot be used.
fn unfit(target: &Target) -> Option<String> {
    let Source::Project(row) = &target.home else {
        return None;
    };
    if !row.enabled {
        return None;
    }
    let checked = check_project(&row.project_id, &row.name, &entry(row), &Default::default());
    checked.err().map(|unfit| unfit.problems.join("; "))
}
