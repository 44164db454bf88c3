//! Tasks: calls whose result is fetched later. Keeps track of their owners and servers.
//!
//! Invariants: a task is accessible only to its owner, which is the key that created it. Without a key, the owner is
//! the session; without either, anyone who knows the task's id, which is then random. The table is bounded: when it is
//! full, the owner with the most tasks loses the oldest one. Deliberately absent: persistence, `notifications/tasks` of
//! modern servers, and how task requests are answered ([`crate::call::task_requests`]).

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Weak},
};

use bytes::Bytes;
use mcp::{
    Era, Frame, RpcError,
    client::Call,
    json::{Splice, quote},
    server::Session,
};
use memchr::memmem::Finder;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    exchange::{Answer, Caller, Owner},
    server::{
        Server,
        callers::ServerId,
        connection::Connection,
        place::{Place, TASK_PREFIX},
        questions::Ask,
    },
};

/// Built once, since building a finder costs as much as a search.
static TASK_ID: std::sync::LazyLock<Finder<'_>> =
    std::sync::LazyLock::new(|| Finder::new("\"taskId\""));

/// Tasks kept in total.
const MAX_TASKS: usize = 10_000;
/// Tasks kept per owner.
const MAX_OWNED: usize = 1_000;
/// Total bytes of kept results.
const MAX_KEPT_BYTES: usize = 16 << 20;

pub(crate) struct Task {
    /// The id that the client knows.
    pub(crate) id: Arc<str>,
    /// The id that the server knows.
    pub(crate) native: Arc<str>,
    pub(crate) server: ServerId,
    /// The era in which the server knows it.
    pub(crate) era: Era,
    /// The result, if the server returned it immediately.
    pub(crate) kept: Option<Kept>,
    /// Open requests of a legacy server to a modern client.
    pub(crate) questions: Mutex<Questions>,
    owner: Owner,
    session: Weak<Session>,
}

/// The result of a task that was complete when it was created.
pub(crate) struct Kept {
    /// The members of the legacy task, without braces.
    pub(crate) task: String,
    /// JSON text.
    pub(crate) result: Bytes,
}

/// State of a legacy server's requests to the client during a task.
pub(crate) enum Questions {
    /// Not fetched yet.
    None,
    /// Being fetched by a request.
    Taken,
    Open(Box<Open>),
}

/// A `tasks/result` in flight, during which a legacy server sends requests.
pub(crate) struct Open {
    pub(crate) call: Call,
    pub(crate) connection: Arc<Connection>,
    pub(crate) asks: Vec<Ask>,
    /// Number of requests so far. Keys are never reused (SEP-2663 "Task Update Requests").
    pub(crate) asked: usize,
    pub(crate) expires: Instant,
}

impl Drop for Open {
    /// Each request gets a response, whatever happens to its task.
    fn drop(&mut self) {
        for ask in &self.asks {
            let why = RpcError::internal("the client did not answer");
            let refusal = Frame::error(ask.request.id(), &why);
            self.connection.client.send_behind(refusal);
        }
    }
}

#[derive(Default)]
struct Inner {
    tasks: HashMap<(Owner, Arc<str>), Arc<Task>>,
    /// Task ids by owner, oldest first.
    owned: HashMap<Owner, VecDeque<Arc<str>>>,
    /// Tasks with a kept result, oldest first, and the total bytes of the results.
    kept: VecDeque<(Owner, Arc<str>)>,
    kept_bytes: usize,
}

pub(crate) struct Tasks {
    place: Place,
    inner: Mutex<Inner>,
}

impl Tasks {
    pub(crate) fn new(place: Place) -> Self {
        Self {
            place,
            inner: Mutex::default(),
        }
    }

    /// Stores a task that a server has created. Returns the id for the client.
    fn add(&self, caller: &Caller, server: &Server, native: &str, era: Era) -> Arc<str> {
        let owner = Owner::of(caller);
        // Requests about the task may arrive at another gateway, unless they belong to a session, whose requests always
        // arrive here.
        let may_arrive_elsewhere = self.place.is_known() && caller.session.is_none();
        let mut inner = self.inner.lock();
        let known = inner.tasks.get(&(owner.clone(), native.into()));
        let id: Arc<str> = match known {
            Some(known) if known.server == *server.id() && *known.native == *native => {
                return known.id.clone();
            }
            None if owner != Owner::Bearer && !may_arrive_elsewhere => native.into(),
            // A new id is needed: the server's id belongs to another server's task, would be the only proof of
            // ownership, or does not name this gateway.
            _ => self.place.handle(TASK_PREFIX).into(),
        };
        inner.insert(Task {
            id: id.clone(),
            native: native.into(),
            server: server.id().clone(),
            era,
            kept: None,
            questions: Mutex::new(Questions::None),
            owner,
            session: session_of(caller),
        });
        id
    }

    /// Stores the result of a task that was complete when it was created. Returns its legacy members.
    ///
    /// # Errors
    /// The result is too large.
    fn keep(&self, caller: &Caller, server: &Server, result: &[u8]) -> Result<String, RpcError> {
        if result.len() > MAX_KEPT_BYTES {
            return Err(RpcError::internal(format!(
                "server `{}` answered immediately with {} bytes, but at most {MAX_KEPT_BYTES} are kept for a task: \
                 call the tool without `task`",
                server.name(),
                result.len()
            )));
        }
        let id: Arc<str> = self.place.handle(TASK_PREFIX).into();
        let now = quote(&store::now().to_rfc3339());
        let task = format!(
            "\"taskId\":{},\"status\":\"completed\",\"createdAt\":{now},\"lastUpdatedAt\":{now},\"ttl\":null",
            quote(&id)
        );
        let owner = Owner::of(caller);
        let mut inner = self.inner.lock();
        inner.kept_bytes += result.len();
        inner.kept.push_back((owner.clone(), id.clone()));
        while inner.kept_bytes > MAX_KEPT_BYTES {
            let Some(oldest) = inner.kept.pop_front() else {
                break;
            };
            inner.remove(&oldest);
        }
        inner.insert(Task {
            id: id.clone(),
            native: id.clone(),
            server: server.id().clone(),
            era: Era::Modern,
            kept: Some(Kept {
                task: task.clone(),
                result: Bytes::copy_from_slice(result),
            }),
            questions: Mutex::new(Questions::None),
            owner,
            session: session_of(caller),
        });
        Ok(task)
    }

    pub(crate) fn find(&self, owner: &Owner, id: &str) -> Option<Arc<Task>> {
        let key = (owner.clone(), id.into());
        self.inner.lock().tasks.get(&key).cloned()
    }

    /// The tasks of an owner, oldest first.
    pub(crate) fn of(&self, owner: &Owner) -> Vec<Arc<Task>> {
        let inner = self.inner.lock();
        let ids = inner.owned.get(owner).into_iter().flatten();
        ids.filter_map(|id| inner.tasks.get(&(owner.clone(), id.clone())).cloned())
            .collect()
    }

    pub(crate) fn forget(&self, task: &Task) {
        self.inner
            .lock()
            .remove(&(task.owner.clone(), task.id.clone()));
    }

    /// The task that a server calls `native`, and the session to notify.
    fn to_tell(&self, server: &ServerId, native: &str) -> Option<(Arc<Task>, Arc<Session>)> {
        let inner = self.inner.lock();
        let mut all = inner.tasks.values();
        let task = all.find(|task| *task.native == *native && task.server == *server)?;
        Some((task.clone(), task.session.upgrade()?))
    }

    /// The response to a tool call that created a task, translated for the client's era. `None` if it created none or
    /// no translation is needed.
    pub(crate) fn created(
        &self,
        caller: &Caller,
        server: &Server,
        response: &Frame,
        era: Era,
    ) -> Option<String> {
        TASK_ID.find(response.body())?;
        let native = mcp::tasks::created(response, era)?;
        let id = self.add(caller, server, &native, era);
        if era == caller.era && *id == *native {
            return None;
        }
        mcp::tasks::creation(response, era, caller.era, &id)
    }

    /// The response for a legacy client that asked for a task when the server answered immediately: a completed task.
    ///
    /// # Errors
    /// The result is too large to be kept.
    pub(crate) fn kept(
        &self,
        caller: &Caller,
        server: &Server,
        frame: &Frame,
        result: &[u8],
    ) -> Result<Answer, RpcError> {
        let task = self.keep(caller, server, result)?;
        let result = format!("{{\"task\":{{{task}}}}}");
        Ok(Answer::result(frame, result.as_bytes()))
    }

    /// Passes a notification about a task to the task's owner only.
    pub(crate) fn tell(&self, server: &ServerId, frame: &Frame) {
        let id = frame.object().and_then(|params| params.string("taskId"));
        let Some((task, session)) = id.and_then(|id| self.to_tell(server, &id)) else {
            return;
        };
        let mut splice = Splice::new();
        if task.id != task.native {
            mcp::tasks::rename(frame, &task.id, &mut splice);
        }
        session.outbox().push(
            mcp::outbox::Weight::Notification,
            splice.apply(frame.text()),
        );
    }

    /// Drops requests that clients have not answered in time, which cancels the call at the server.
    pub(crate) fn sweep(&self) {
        let now = Instant::now();
        let all: Vec<Arc<Task>> = self.inner.lock().tasks.values().cloned().collect();
        for task in all {
            let mut questions = task.questions.lock();
            if matches!(&*questions, Questions::Open(open) if open.expires < now) {
                *questions = Questions::None;
            }
        }
    }
}

impl Inner {
    fn insert(&mut self, task: Task) {
        let owner = task.owner.clone();
        let key = (owner.clone(), task.id.clone());
        let order = self.owned.entry(owner.clone()).or_default();
        order.push_back(task.id.clone());
        let too_many = order.len() > MAX_OWNED;
        self.tasks.insert(key, Arc::new(task));
        let most = if too_many {
            Some(owner)
        } else if self.tasks.len() > MAX_TASKS {
            let most = self.owned.iter().max_by_key(|(_, ids)| ids.len());
            most.map(|(owner, _)| owner.clone())
        } else {
            None
        };
        let oldest = most.and_then(|owner| {
            let id = self.owned.get(&owner)?.front()?.clone();
            Some((owner, id))
        });
        if let Some(oldest) = oldest {
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, key: &(Owner, Arc<str>)) {
        let Some(task) = self.tasks.remove(key) else {
            return;
        };
        if let Some(kept) = &task.kept {
            self.kept_bytes -= kept.result.len();
            self.kept.retain(|known| known != key);
        }
        if let Some(order) = self.owned.get_mut(&key.0) {
            order.retain(|id| *id != key.1);
            if order.is_empty() {
                self.owned.remove(&key.0);
            }
        }
    }
}

fn session_of(caller: &Caller) -> Weak<Session> {
    match &caller.session {
        Some(session) if caller.era == Era::Legacy => Arc::downgrade(session),
        _ => Weak::new(),
    }
}
