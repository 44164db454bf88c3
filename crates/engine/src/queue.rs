//! Calls of one server: so many in flight, so many in line, first come, first served.
//!
//! A queue can be told to take *turns*: then only calls of one caller are in flight at a time. The line is still in
//! order: whoever comes later waits, even if it is the caller whose turn it is, so that nobody waits for ever.
//!
//! Calls of one session are sent in the order of their places, as over a pipe of its own: one that is recorded first does
//! not let the next overtake it.
//!
//! Deliberately absent: who the callers are, and why turns are taken.

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Poll, Waker},
};

use mcp::client::CallerId;
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

/// The end of the line where that many waited in it that are gone by now: they are cleared away.
const MAX_GONE: usize = 64;

/// The queue of one server.
pub(crate) struct Queue {
    places: Arc<Places>,
    waiting: AtomicUsize,
    max_waiting: usize,
}

struct Places {
    limit: usize,
    line: Mutex<Line>,
    /// Rings when no call is in flight any more.
    emptied: Notify,
}

#[derive(Default)]
struct Line {
    in_flight: usize,
    /// Whether nobody else gets a place.
    is_paused: bool,
    /// Whether only calls of one caller are in flight at a time.
    takes_turns: bool,
    /// Whose turn it is, if turns are taken and that is known.
    turn: Option<CallerId>,
    waiting: VecDeque<Waiter>,
    /// Calls with a place that are not sent yet and must not be overtaken, in order.
    unsent: VecDeque<Unsent>,
    next_unsent: u64,
}

struct Unsent {
    number: u64,
    caller: CallerId,
    /// Of one that waits for those before it.
    waker: Option<Waker>,
}

struct Waiter {
    caller: CallerId,
    sending: Sending,
    place: oneshot::Sender<Permit>,
}

/// How a call is sent once it has its place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sending {
    /// As soon as it can be: it is not one of a session.
    Anytime,
    /// At once, but after those of its session that came before.
    InOrder,
    /// After something that takes a while, and in order.
    Later,
}

/// A place among the calls in flight.
pub(crate) struct Permit {
    /// `None`: it is beside the line.
    places: Option<Arc<Places>>,
    caller: CallerId,
    /// Its number among those that are not sent yet, if it is one of them.
    unsent: Option<u64>,
}

impl Permit {
    /// For what waits at the server without keeping it busy.
    pub(crate) fn beside(caller: CallerId) -> Self {
        Self {
            places: None,
            caller,
            unsent: None,
        }
    }

    /// Whose call it is for.
    pub(crate) fn caller(&self) -> CallerId {
        self.caller
    }

    /// Waits until all calls of the session that came before are sent. These have places, too: nobody waits for a call in
    /// line here.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn in_order(&self) {
        let (Some(number), Some(places)) = (self.unsent, &self.places) else {
            return;
        };
        poll_fn(|cx| {
            let mut line = places.line.lock();
            let all = line.unsent.iter();
            let mut before = all.take_while(|unsent| unsent.number != number);
            if !before.any(|unsent| unsent.caller == self.caller) {
                return Poll::Ready(());
            }
            let mut unsent = line.unsent.iter_mut();
            if let Some(own) = unsent.find(|own| own.number == number) {
                own.waker = Some(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// It is sent: the next of its session may be.
    pub(crate) fn sent(&mut self) {
        let (Some(number), Some(places)) = (self.unsent.take(), &self.places) else {
            return;
        };
        let next = {
            let mut line = places.line.lock();
            line.unsent.retain(|unsent| unsent.number != number);
            let mut others = line.unsent.iter_mut();
            let next = others.find(|unsent| unsent.caller == self.caller);
            next.and_then(|next| next.waker.take())
        };
        if let Some(next) = next {
            next.wake();
        }
    }
}

/// Where a call stands that wants to be among those in flight.
pub(crate) enum Place<'a> {
    InFlight(Permit),
    InLine(oneshot::Receiver<Permit>, InLine<'a>),
}

impl Queue {
    pub(crate) fn new(limit: usize, max_waiting: usize, takes_turns: bool) -> Self {
        let line = Line {
            takes_turns,
            ..Line::default()
        };
        Self {
            places: Arc::new(Places {
                limit,
                line: Mutex::new(line),
                emptied: Notify::new(),
            }),
            waiting: AtomicUsize::new(0),
            max_waiting,
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.places.line.lock().in_flight
    }

    /// Waits until no call is in flight.
    pub(crate) async fn idle(&self) {
        loop {
            let emptied = self.places.emptied.notified();
            if self.in_flight() == 0 {
                return;
            }
            emptied.await;
        }
    }

    /// Has all calls wait in line until the answer is dropped, but for those in flight.
    pub(crate) fn pause(&self) -> Paused<'_> {
        self.places.line.lock().is_paused = true;
        Paused(&self.places)
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(crate) fn takes_turns(&self) -> bool {
        self.places.line.lock().takes_turns
    }

    /// Takes turns from now on; `false` if it does already.
    pub(crate) fn take_turns(&self) -> bool {
        let mut line = self.places.line.lock();
        // The calls in flight may be of several callers: the next turn begins when all of them are over.
        line.turn = None;
        !std::mem::replace(&mut line.takes_turns, true)
    }

    /// A place among the calls in flight, or in line for one. Dropping it gives it up.
    ///
    /// # Errors
    /// How many are in line already, if that is as many as may be.
    pub(crate) fn line_up(&self, caller: CallerId, sending: Sending) -> Result<Place<'_>, usize> {
        let mut line = self.places.line.lock();
        if line.waiting.is_empty() && line.has_room(self.places.limit, caller) {
            return Ok(Place::InFlight(line.admit(&self.places, caller, sending)));
        }
        let ahead = self.waiting.load(Ordering::Relaxed);
        if ahead >= self.max_waiting {
            return Err(ahead);
        }
        if line.waiting.len() >= ahead + MAX_GONE {
            line.waiting.retain(|waiter| !waiter.place.is_closed());
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let (place, given) = oneshot::channel();
        line.waiting.push_back(Waiter {
            caller,
            sending,
            place,
        });
        Ok(Place::InLine(given, InLine(&self.waiting)))
    }

    /// Waits for this call's turn; `None` if it does not come in time.
    ///
    /// # Cancel safety
    /// Dropped before it is done, the place in line is given up.
    pub(crate) async fn turn(&self, place: Place<'_>, deadline: Instant) -> Option<Permit> {
        match place {
            Place::InFlight(permit) => Some(permit),
            Place::InLine(given, _in_line) => {
                let permit = Box::pin(tokio::time::timeout_at(deadline, given)).await;
                permit.ok()?.ok()
            }
        }
    }
}

impl Places {
    /// Gives places to those in line, as far as there is room.
    fn let_in<'p>(self: &'p Arc<Self>, mut line: MutexGuard<'p, Line>) {
        while let Some(waiter) = line.next(self.limit) {
            // It hears of its place in a while: calls that come meanwhile must not overtake it.
            let sending = match waiter.sending {
                Sending::InOrder => Sending::Later,
                other => other,
            };
            let permit = line.admit(self, waiter.caller, sending);
            drop(line);
            // Of one that has just gone, the permit comes back and is dropped here: then its place is given on.
            drop(waiter.place.send(permit));
            line = self.line.lock();
        }
    }
}

/// Keeps calls in line until it is dropped.
pub(crate) struct Paused<'q>(&'q Arc<Places>);

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        let mut line = self.0.line.lock();
        line.is_paused = false;
        self.0.let_in(line);
    }
}

impl Line {
    fn has_room(&self, limit: usize, caller: CallerId) -> bool {
        !self.is_paused
            && self.in_flight < limit
            && (!self.takes_turns || self.in_flight == 0 || self.turn == Some(caller))
    }

    fn admit(&mut self, places: &Arc<Places>, caller: CallerId, sending: Sending) -> Permit {
        self.in_flight += 1;
        if self.takes_turns {
            self.turn = Some(caller);
        }
        let waits = match sending {
            Sending::Anytime => false,
            Sending::InOrder => self.unsent.iter().any(|unsent| unsent.caller == caller),
            Sending::Later => true,
        };
        let unsent = waits.then(|| {
            let number = self.next_unsent;
            self.next_unsent += 1;
            self.unsent.push_back(Unsent {
                number,
                caller,
                waker: None,
            });
            number
        });
        Permit {
            places: Some(places.clone()),
            caller,
            unsent,
        }
    }

    /// The next in line, if there is room for it.
    fn next(&mut self, limit: usize) -> Option<Waiter> {
        while self.waiting.front()?.place.is_closed() {
            self.waiting.pop_front();
        }
        let caller = self.waiting.front()?.caller;
        if self.has_room(limit, caller) {
            self.waiting.pop_front()
        } else {
            None
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.sent();
        let Some(places) = &self.places else { return };
        let mut line = places.line.lock();
        line.in_flight -= 1;
        if line.in_flight == 0 {
            places.emptied.notify_waiters();
        }
        places.let_in(line);
    }
}

/// Counts among those in line until it is dropped.
pub(crate) struct InLine<'a>(&'a AtomicUsize);

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(30)
    }

    fn enter(queue: &Queue, caller: CallerId) -> impl Future<Output = Option<Permit>> {
        let mut entering = Box::pin(async move {
            let place = queue.line_up(caller, Sending::Anytime).ok()?;
            queue.turn(place, soon()).await
        });
        let first = (&mut entering).now_or_never();
        async move {
            match first {
                Some(permit) => permit,
                None => entering.await,
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_lets_calls_end_and_none_begin() {
        let queue = Queue::new(2, 2, false);
        let first = enter(&queue, CallerId::unique()).await;
        let paused = queue.pause();
        let mut second = Box::pin(enter(&queue, CallerId::unique()));
        assert!((&mut second).now_or_never().is_none());
        let mut idle = Box::pin(queue.idle());
        assert!((&mut idle).now_or_never().is_none());
        drop(first);
        idle.await;
        assert!((&mut second).now_or_never().is_none());
        drop(paused);
        assert!(second.await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_out_of_the_line_is_not_overtaken() {
        let queue = Queue::new(2, 2, false);
        let one = CallerId::unique();
        let line_up = || queue.line_up(one, Sending::InOrder).expect("there is room");
        let deadline = Instant::now() + Duration::from_secs(1);
        let first = queue.turn(line_up(), deadline).await;
        let second = queue.turn(line_up(), deadline).await;
        let waits = line_up();
        // It has a place now, and has not heard of it when another one gets one at once.
        drop((first, second));
        let late = queue.turn(line_up(), deadline).await.expect("a place");
        let mut sends = Box::pin(late.in_order());
        assert!((&mut sends).now_or_never().is_none());
        let mut waited = queue.turn(waits, deadline).await.expect("a place");
        waited.in_order().await;
        waited.sent();
        sends.await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_limit_holds_and_the_line_is_in_order() {
        let queue = Queue::new(2, 2, false);
        let caller = CallerId::unique;
        let (first, second) = (enter(&queue, caller()).await, enter(&queue, caller()).await);
        let mut third = Box::pin(enter(&queue, caller()));
        let mut fourth = Box::pin(enter(&queue, caller()));
        assert_eq!((queue.in_flight(), queue.waiting()), (2, 2));
        assert!(enter(&queue, caller()).await.is_none(), "the line is full");
        drop(first);
        let third = (&mut third).now_or_never().expect("its turn");
        assert!((&mut fourth).now_or_never().is_none());
        drop((second, third));
        assert!(fourth.await.is_some());
        assert_eq!((queue.in_flight(), queue.waiting()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_leaves_the_line_holds_up_nobody() {
        let queue = Queue::new(1, 1000, false);
        let holder = enter(&queue, CallerId::unique()).await;
        for _ in 0..500 {
            drop(enter(&queue, CallerId::unique()));
        }
        assert_eq!(queue.waiting(), 0);
        assert!(queue.places.line.lock().waiting.len() <= MAX_GONE + 1);
        let last = enter(&queue, CallerId::unique());
        let gone = enter(&queue, CallerId::unique());
        drop(gone);
        drop(holder);
        drop(last.await.expect("its turn"));
        assert_eq!(queue.in_flight(), 0);
        // One that waits in vain gets no place, and takes none.
        let holder = enter(&queue, CallerId::unique()).await;
        assert!(enter(&queue, CallerId::unique()).await.is_none());
        drop(holder);
        assert_eq!(queue.in_flight(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn turns_are_one_callers_and_nobody_starves() {
        let queue = Queue::new(64, 64, false);
        let [one, two, three] = [(); 3].map(|()| CallerId::unique());
        let early = [enter(&queue, one).await, enter(&queue, two).await];
        assert!(queue.take_turns() && !queue.take_turns());
        // The calls in flight are of several callers: even those callers wait until all are over.
        let mut again = Box::pin(enter(&queue, one));
        assert!((&mut again).now_or_never().is_none());
        drop(early);
        let again = (&mut again).now_or_never().flatten().expect("its turn");
        let beside = enter(&queue, one).now_or_never().flatten();
        let beside = beside.expect("the same caller's turn");
        let mut other = Box::pin(enter(&queue, two));
        let mut late = Box::pin(enter(&queue, one));
        let mut third = Box::pin(enter(&queue, three));
        drop(again);
        assert!((&mut other).now_or_never().is_none(), "one call goes on");
        drop(beside);
        let other = (&mut other).now_or_never().flatten().expect("its turn");
        assert!((&mut late).now_or_never().is_none(), "not past the other");
        drop(other);
        let late = (&mut late).now_or_never().flatten().expect("its turn");
        assert!((&mut third).now_or_never().is_none());
        drop(late);
        assert!(third.await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn calls_of_a_session_are_sent_in_order() {
        let queue = Queue::new(64, 64, false);
        let [one, two] = [(); 2].map(|()| CallerId::unique());
        let enter = async |caller, sending| {
            let place = queue.line_up(caller, sending).expect("there is room");
            queue.turn(place, soon()).await.expect("there is room")
        };
        let mut first = enter(one, Sending::Later).await;
        let mut second = enter(one, Sending::InOrder).await;
        let third = enter(one, Sending::Later).await;
        let mut other = enter(two, Sending::Later).await;
        let anytime = enter(one, Sending::Anytime).await;
        for (permit, is_free) in [
            (&first, true),
            (&second, false),
            (&third, false),
            (&other, true),
            (&anytime, true),
        ] {
            assert_eq!(permit.in_order().now_or_never().is_some(), is_free);
        }
        other.sent();
        let waits = tokio::join!(second.in_order(), async { first.sent() });
        assert_eq!(waits, ((), ()));
        assert!(third.in_order().now_or_never().is_none());
        second.sent();
        third.in_order().await;
        drop((first, second, third, other));
        // With nobody before it, it need not wait at all.
        assert!(enter(one, Sending::InOrder).await.unsent.is_none());
        assert!(queue.places.line.lock().unsent.is_empty());
        drop(anytime);
        assert_eq!(queue.in_flight(), 0);
    }
}
