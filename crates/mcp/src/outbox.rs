//! A queue of messages to one client: bounded in number and bytes. Locks are held only briefly, and writers never wait
//! for readers.
//!
//! When it is full, notifications are dropped, oldest first, and counted. A request or response that does not fit
//! closes the outbox, because a client that has stopped reading cannot be served.
//!
//! Ambient messages have a small limit of their own, are dropped before all others, and use at most half of the memory
//! for all clients. So a server that sends them without end costs clients none of their other messages.

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;

use crate::backlog::Account;
use parking_lot::{Mutex, MutexGuard};

/// How important it is that a message arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// Sent by a server outside of calls, at any rate, such as a log message.
    Ambient,
    /// May be dropped if the reader is slow.
    Notification,
    /// Not added if an equal message is still queued (`list_changed`).
    Signal,
    /// Must arrive.
    Must,
}

/// Maximum number and bytes of queued messages.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub messages: usize,
    pub bytes: usize,
}

/// Maximum number and bytes of queued ambient messages.
const MAX_AMBIENT: Bounds = Bounds {
    messages: 128,
    bytes: 512 << 10,
};

/// A bounded queue with one reader.
#[derive(Debug)]
pub struct Outbox {
    bounds: Bounds,
    /// The account that queued messages are charged to.
    account: Option<Arc<Account>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<(Weight, Bytes)>,
    bytes: usize,
    dropped: u64,
    closed: bool,
    waker: Option<Waker>,
}

impl Outbox {
    #[must_use]
    pub fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self {
            bounds,
            account: None,
            state: Mutex::default(),
        })
    }

    /// An outbox whose messages are charged to `account`. If the account is cut off, the outbox is closed and emptied.
    #[must_use]
    pub fn charged(bounds: Bounds, account: Arc<Account>) -> Arc<Self> {
        Arc::new(Self {
            bounds,
            account: Some(account),
            state: Mutex::default(),
        })
    }

    fn paid(&self, bytes: usize) {
        if let Some(account) = &self.account {
            account.sub(bytes);
        }
    }

    /// Closes the outbox permanently and discards its messages.
    fn shut(&self, mut state: MutexGuard<'_, State>) {
        state.closed = true;
        state.waiting = VecDeque::new();
        self.paid(state.bytes);
        state.bytes = 0;
        wake(state);
    }

    /// Adds a message. Returns `false` if the message was not accepted.
    pub fn push(&self, weight: Weight, message: Bytes) -> bool {
        let mut state = self.state.lock();
        if state.closed {
            return false;
        }
        if self
            .account
            .as_ref()
            .is_some_and(|account| account.is_cut())
        {
            self.shut(state);
            return false;
        }
        if weight == Weight::Signal && state.waiting.iter().any(|(_, waiting)| *waiting == message)
        {
            return true;
        }
        let is_ambient = weight == Weight::Ambient;
        if is_ambient && !self.has_room_for_ambient(&mut state, message.len()) {
            state.dropped += 1;
            return false;
        }
        while state.waiting.len() >= self.bounds.messages
            || (state.bytes + message.len() > self.bounds.bytes && !state.waiting.is_empty())
        {
            let oldest = match state.oldest(|weight| weight == Weight::Ambient) {
                None if !is_ambient => state.oldest(|weight| weight != Weight::Must),
                ambient => ambient,
            };
            match oldest {
                Some(at) => self.drop_at(&mut state, at),
                None if weight == Weight::Must => {
                    self.shut(state);
                    return false;
                }
                None => {
                    state.dropped += 1;
                    return false;
                }
            }
        }
        let length = message.len();
        state.bytes += length;
        state.waiting.push_back((weight, message));
        let Some(account) = &self.account else {
            wake(state);
            return true;
        };
        if !account.add(length) {
            self.shut(state);
            return false;
        }
        wake(state);
        account.backlog().settle();
        true
    }

    /// Drops older ambient messages until one with this many bytes fits beside the others. Returns `false` if it does
    /// not.
    fn has_room_for_ambient(&self, state: &mut State, bytes: usize) -> bool {
        let account = self.account.as_ref();
        let is_short = account.is_some_and(|account| account.backlog().is_half_used(bytes));
        if is_short || bytes > MAX_AMBIENT.bytes {
            return false;
        }
        loop {
            let is_ambient = |weight| weight == Weight::Ambient;
            let Some(oldest) = state.oldest(is_ambient) else {
                return true;
            };
            let waiting = state.waiting.iter().filter(|(own, _)| is_ambient(*own));
            let (count, sum) = waiting.fold((0, 0), |(count, sum), (_, message)| {
                (count + 1, sum + message.len())
            });
            if count < MAX_AMBIENT.messages && sum + bytes <= MAX_AMBIENT.bytes {
                return true;
            }
            self.drop_at(state, oldest);
        }
    }

    fn drop_at(&self, state: &mut State, at: usize) {
        if let Some((_, dropped)) = state.waiting.remove(at) {
            state.bytes -= dropped.len();
            state.dropped += 1;
            self.paid(dropped.len());
        }
    }

    /// Refuses further messages. Queued ones can still be read.
    pub fn close(&self) {
        let mut state = self.state.lock();
        if self
            .account
            .as_ref()
            .is_some_and(|account| account.is_cut())
        {
            return self.shut(state);
        }
        state.closed = true;
        wake(state);
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.state.lock().waiting.is_empty()
    }

    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Number of notifications dropped because the reader was slow.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.state.lock().dropped
    }

    /// Waits until a message is queued, without taking it.
    pub fn poll_filled(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        if state.waiting.is_empty() {
            state.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// Takes the next message if one is queued.
    pub fn take(&self) -> Option<(Weight, Bytes)> {
        self.taken(&mut self.state.lock())
    }

    fn taken(&self, state: &mut State) -> Option<(Weight, Bytes)> {
        let message = state.take()?;
        self.paid(message.1.len());
        Some(message)
    }

    /// The next message, or `None` once the outbox is closed and empty.
    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<(Weight, Bytes)>> {
        let mut state = self.state.lock();
        if let Some(message) = self.taken(&mut state) {
            return Poll::Ready(Some(message));
        }
        if state.closed {
            return Poll::Ready(None);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// The next message, or `None` once the outbox is closed and empty.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn next(&self) -> Option<Bytes> {
        let (_, message) = poll_fn(|cx| self.poll_next(cx)).await?;
        Some(message)
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.paid(self.state.lock().bytes);
    }
}

impl State {
    /// The position of the oldest message whose weight satisfies `is`.
    fn oldest(&self, is: impl Fn(Weight) -> bool) -> Option<usize> {
        self.waiting.iter().position(|(weight, _)| is(*weight))
    }

    fn take(&mut self) -> Option<(Weight, Bytes)> {
        let message = self.waiting.pop_front()?;
        self.bytes -= message.1.len();
        if self.waiting.is_empty() {
            // An idle outbox keeps no memory.
            self.waiting = VecDeque::new();
        }
        Some(message)
    }
}

fn wake(mut state: MutexGuard<'_, State>) {
    if let Some(waker) = state.waker.take() {
        drop(state);
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backlog::Backlog;

    fn text(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    #[tokio::test]
    async fn drops_notifications_and_never_what_must_arrive() {
        let outbox = Outbox::new(Bounds {
            messages: 3,
            bytes: 100,
        });
        for (weight, message) in [
            (Weight::Notification, "1"),
            (Weight::Must, "2"),
            (Weight::Signal, "s"),
            (Weight::Signal, "s"),
            (Weight::Notification, "3"),
        ] {
            assert!(outbox.push(weight, text(message)));
        }
        assert_eq!(outbox.dropped(), 1);
        for expect in ["2", "s", "3"] {
            assert_eq!(outbox.next().await, Some(text(expect)));
        }
        for message in ["a", "b", "c"] {
            assert!(outbox.push(Weight::Must, text(message)));
        }
        assert!(!outbox.push(Weight::Notification, text("n")));
        assert!(!outbox.push(Weight::Must, text("d")));
        assert_eq!(outbox.next().await, None);
    }

    #[tokio::test]
    async fn is_bounded_in_bytes() {
        let outbox = Outbox::new(Bounds {
            messages: 100,
            bytes: 10,
        });
        assert!(outbox.push(Weight::Notification, text("123456")));
        assert!(outbox.push(Weight::Notification, text("789012")));
        outbox.close();
        assert_eq!(outbox.next().await, Some(text("789012")));
        assert_eq!(outbox.next().await, None);
    }

    /// Ambient messages push out only each other, and everything else pushes out them.
    #[tokio::test]
    async fn ambient_messages_cost_no_others() {
        const FEW: Bounds = Bounds {
            messages: 2,
            bytes: 4 << 20,
        };
        let outbox = Outbox::new(FEW);
        assert!(outbox.push(Weight::Signal, text("changed")));
        for message in ["1", "2", "3"] {
            assert!(outbox.push(Weight::Ambient, text(message)));
        }
        assert!(outbox.push(Weight::Notification, text("progress")));
        assert!(!outbox.push(Weight::Ambient, text("4")));
        assert_eq!(outbox.dropped(), 4);
        for expect in ["changed", "progress"] {
            assert_eq!(outbox.next().await, Some(text(expect)));
        }
        // They have a limit of their own, in number and in bytes.
        let outbox = Outbox::new(Bounds {
            messages: 1000,
            ..FEW
        });
        let long = Bytes::from(vec![b'x'; MAX_AMBIENT.bytes / 2]);
        assert!(!outbox.push(Weight::Ambient, vec![b'x'; MAX_AMBIENT.bytes + 1].into()));
        for _ in 0..5 {
            assert!(outbox.push(Weight::Ambient, long.clone()));
        }
        for _ in 0..MAX_AMBIENT.messages {
            assert!(outbox.push(Weight::Ambient, text("short")));
        }
        assert_eq!(outbox.next().await, Some(text("short")));
    }

    /// Clients that do not read are not disconnected because of ambient messages.
    #[tokio::test]
    async fn ambient_messages_leave_memory_to_others() {
        let backlog = Backlog::new(64 << 10);
        let idle = Outbox::charged(
            Bounds {
                messages: 100,
                bytes: 1 << 20,
            },
            backlog.account(),
        );
        let long = Bytes::from(vec![b'x'; 10 << 10]);
        let queued = (0..10).filter(|_| idle.push(Weight::Ambient, long.clone()));
        assert_eq!(queued.count(), 3);
        assert!(!idle.is_closed());
        assert!(idle.push(Weight::Must, long));
    }

    #[tokio::test]
    async fn what_waits_is_charged_until_it_is_taken() {
        const BOUNDS: Bounds = Bounds {
            messages: 3,
            bytes: 1 << 20,
        };
        let backlog = Backlog::new(64 << 10);
        let [one, other] = [(); 2].map(|()| backlog.account());
        let outbox = Outbox::charged(BOUNDS, one.clone());
        let long = Bytes::from(vec![b'x'; 20 << 10]);
        for _ in 0..5 {
            assert!(outbox.push(Weight::Notification, long.clone()));
        }
        assert_eq!(outbox.dropped(), 2);
        assert_eq!(backlog.bytes(), 60 << 10);
        assert!(outbox.next().await.is_some());
        assert_eq!(backlog.bytes(), 40 << 10);
        // Another client needs the memory.
        assert!(other.add(30 << 10));
        backlog.settle();
        assert!(one.is_cut());
        assert!(!outbox.push(Weight::Must, long.clone()));
        assert_eq!(outbox.next().await, None);
        assert_eq!(backlog.bytes(), 30 << 10);
        let outbox = Outbox::charged(BOUNDS, other.clone());
        assert!(outbox.push(Weight::Must, long));
        drop(outbox);
        assert_eq!(backlog.bytes(), 30 << 10);
    }
}
