//! Routes of a server's entry: show it without its secrets, and change it where it is declared.
//!
//! Invariants: those of [`backend::entries`]. Only configuration files that are in use are changed.

use std::path::Path;

use api::{DeclaredEntry, EntryChange};
use axum::{
    Extension, Json,
    body::Bytes,
    extract::{State, rejection::BytesRejection},
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use config::{EditError, Sources, check_entry};
use serde::Deserialize;
use serde_json::Value;

use super::{Entry, Source, Target, file, tag_of_registration, unfit};
use crate::{
    AppState, Problem, Rest,
    access::{Who, permit},
    input::{self, Asked, Conditions, etag},
};
use auth::Role;
use backend::{
    entries::{difference, masked, restored},
    hosting,
    loop_detection::LoopDetection,
    server_files, startup,
};

/// Query parameters of a change.
#[derive(Debug, Deserialize)]
pub(crate) struct Changing {
    #[serde(default)]
    dry_run: bool,
}

pub(crate) async fn show(
    State(rest): State<AppState>,
    Extension(who): Who,
    target: Target,
) -> Result<Response, Problem> {
    let (tag, declared, at, entry) = match &target.home {
        Source::Project(row) => {
            let entry = rest.whole(row).await?;
            (super::tag_of_row(row), "project", None, entry)
        }
        Source::Registered(row) => {
            permit(&who, Role::Admin, target.key.owner.as_ref())?;
            let tag = tag_of_registration(row);
            (tag, "registered", None, rest.hosting.given(row).await?)
        }
        Source::File => {
            permit(&who, Role::Admin, None)?;
            let name = target.key.name.clone();
            let read =
                move |sources: &Sources, _: &LoopDetection| server_files::entry(sources, &name);
            let (at, entry) = rest.live.read(read).await?;
            (etag(&entry), "file", Some(file(at)), entry)
        }
    };
    let told = DeclaredEntry {
        declared: declared.to_owned(),
        file: at,
        entry: masked(&entry),
    };
    let headers = [
        (header::ETAG, tag),
        (header::CACHE_CONTROL, "no-store".to_owned()),
    ];
    Ok((headers, Json(told)).into_response())
}

pub(crate) async fn save(
    State(rest): State<AppState>,
    who: Who,
    target: Target,
    Asked(Changing { dry_run }): Asked<Changing>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<EntryChange>, Problem> {
    let conditions = Conditions::of(&headers);
    let given: Value = input::json(body)?;
    if !given.is_object() {
        return Err(Problem::field(422, "", "must be an object"));
    }
    let name = &target.key.name;
    let bad = |wrong| unfit(&format!("the entry of server `{name}` is invalid"), wrong);
    let (before, tag) = match &target.home {
        Source::File => {
            permit(&who, Role::Admin, None)?;
            return rest
                .change_in_file(&target, conditions, given, dry_run)
                .await;
        }
        Source::Project(row) => (rest.whole(row).await?, super::tag_of_row(row)),
        Source::Registered(row) => {
            permit(&who, Role::Admin, target.key.owner.as_ref())?;
            (rest.hosting.given(row).await?, tag_of_registration(row))
        }
    };
    let entry = restored(given, Some(&before)).map_err(bad)?;
    let diff = difference(&before, &entry);
    match (&target.home, &target.key.owner) {
        (Source::Project(_), Some(project)) => {
            Entry::read(project, name, entry.clone(), None)
                .map(drop)
                .map_err(bad)?;
        }
        _ => {
            let entry = super::put::registration(&target, entry.clone());
            hosting::Entry::read(entry, None)
                .map(drop)
                .map_err(hosting::Error::Unfit)?;
        }
    }
    // The precondition is checked after all other checks (RFC 9110, section 13.2.1).
    conditions.permit(Some(&tag))?;
    if !dry_run {
        // Replaces only the version that was read above.
        let conditions = Conditions::only(tag);
        match (&target.home, target.key.owner.clone()) {
            (Source::Project(_), Some(project)) => {
                rest.own(&who, project, name.clone(), &conditions, entry)
                    .await?;
            }
            _ => drop(rest.replace(&who, &target, &conditions, entry).await?),
        }
    }
    Ok(Json(EntryChange {
        saved: !dry_run,
        diff,
        notices: Vec::new(),
    }))
}

impl Rest {
    async fn change_in_file(
        &self,
        target: &Target,
        conditions: Conditions,
        given: Value,
        dry_run: bool,
    ) -> Result<Json<EntryChange>, Problem> {
        let name = target.key.name.clone();
        let change = move |sources: &Sources, myself: &LoopDetection| {
            server_files::update(sources, myself, &name, dry_run, |before| {
                if conditions.permit(Some(&etag(&before))).is_err() {
                    return Err(EditError::Changed(name.clone()));
                }
                let entry = restored(given.clone(), Some(&before)).map_err(|mut wrong| {
                    // Everything that is wrong with the entry is reported at once.
                    let sealed = sources.sealed.get();
                    let rest = check_entry(Path::new(""), &name, &given, &startup::env, &sealed);
                    wrong.extend(rest.err().into_iter().flat_map(|unfit| unfit.wrong));
                    EditError::Unfit {
                        name: name.clone(),
                        problems: wrong.iter().map(|wrong| wrong.detail.clone()).collect(),
                        wrong,
                    }
                })?;
                let diff = difference(&before, &entry);
                Ok((entry, diff))
            })
        };
        let ((_, diff, warnings), more) = match dry_run {
            true => (self.live.read(change).await?, Vec::new()),
            false => self.edit(change).await?,
        };
        Ok(Json(EntryChange {
            saved: !dry_run,
            diff,
            notices: warnings.into_iter().chain(more).collect(),
        }))
    }
}
