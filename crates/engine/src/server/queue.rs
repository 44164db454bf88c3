//! The call queue of one server, first come, first served. The numbers of calls in flight and of waiting calls are
//! limited.
//!
//! A queue can be switched to *turns*: then only calls of one caller are in flight at a time. The order stays first
//! come, first served: a later call waits, even if its caller has the turn, so that no caller starves.
//!
//! Calls of one session are sent in the order of their places, as over a pipe. While a call is being recorded, the next
//! one does not overtake it.
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

/// Maximum number of abandoned calls that stay in the waiting line. When there are more, they are removed.
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
    /// Notified when no call is in flight.
    emptied: Notify,
}

#[derive(Default)]
struct Line {
    in_flight: usize,
    /// True if no further call gets a place.
    is_paused: bool,
    /// True if only calls of one caller are in flight at a time.
    takes_turns: bool,
    /// The caller whose turn it is, if turns are taken and the caller is known.
    turn: Option<CallerId>,
    waiting: VecDeque<Waiter>,
    /// Calls that have a place, are not sent yet and must not be overtaken, in order.
    unsent: VecDeque<Unsent>,
    next_unsent: u64,
}

struct Unsent {
    number: u64,
    caller: CallerId,
    /// Set while the call waits for the calls before it.
    waker: Option<Waker>,
}

struct Waiter {
    caller: CallerId,
    sending: Sending,
    place: oneshot::Sender<Permit>,
}

/// When a call may be sent after it gets its place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sending {
    /// At any time: the call does not belong to a session.
    Anytime,
    /// Immediately, but after earlier calls of its session.
    InOrder,
    /// After work that takes a while, such as writing the call's record, and in the order of the session.
    Later,
}

/// A place among the calls in flight.
pub(crate) struct Permit {
    /// `None`: the call does not count as in flight.
    places: Option<Arc<Places>>,
    caller: CallerId,
    /// The call's number in `unsent`, if it is in that list.
    unsent: Option<u64>,
}

impl Permit {
    /// A permit for a call that only waits at the server, without keeping it busy.
    pub(crate) fn beside(caller: CallerId) -> Self {
        Self {
            places: None,
            caller,
            unsent: None,
        }
    }

    /// The caller that has the permit.
    pub(crate) fn caller(&self) -> CallerId {
        self.caller
    }

    /// Waits until all earlier calls of the session are sent. Those have places too, so this never waits for a call in
    /// line.
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

    /// Marks the call as sent, so that the next one of its session may follow.
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

/// The place of a call that wants to be sent.
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

    pub(crate) fn max_waiting(&self) -> usize {
        self.max_waiting
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

    /// Makes all further calls wait in line until the returned guard is dropped. Calls in flight are not affected.
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

    /// Switches to turns. Returns `false` if turns were on already.
    pub(crate) fn take_turns(&self) -> bool {
        let mut line = self.places.line.lock();
        // Calls of several callers may be in flight. The next turn begins when all of them are done.
        line.turn = None;
        !std::mem::replace(&mut line.takes_turns, true)
    }

    /// Takes a place among the calls in flight or, if all are taken, in the waiting line. Dropping the place frees it.
    ///
    /// # Errors
    /// The number of calls in line, if that is the maximum.
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

    /// Waits for this call's turn. `None` if the deadline comes first.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in line.
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
    /// Gives places to the calls in line until no room is left.
    fn let_in<'p>(self: &'p Arc<Self>, mut line: MutexGuard<'p, Line>) {
        while let Some(waiter) = line.next(self.limit) {
            // The waiter is notified of its place a little later. Calls that arrive meanwhile must not overtake it.
            let sending = match waiter.sending {
                Sending::InOrder => Sending::Later,
                other => other,
            };
            let permit = line.admit(self, waiter.caller, sending);
            drop(line);
            // If the waiter has just gone, the permit is returned and dropped here, which passes its place on.
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

    /// The next call in line, if it can be sent now.
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

/// Counts a call as in line until it is dropped.
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
        // `waits` has a place now but has not been notified when another call gets one immediately.
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
        // A call that times out gets no place and occupies none.
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
        // The calls in flight belong to several callers. Even those callers wait until all are done.
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
        // Without an earlier call, a call does not wait.
        assert!(enter(one, Sending::InOrder).await.unsent.is_none());
        assert!(queue.places.line.lock().unsent.is_empty());
        drop(anytime);
        assert_eq!(queue.in_flight(), 0);
    }
}
