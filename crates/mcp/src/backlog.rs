//! A budget for data that waits to be read by clients, shared by all queues.
//!
//! Each queue is bounded, but the queues of thousands of stalled clients add up. All waiting data is therefore charged
//! to an [`Account`] per connection or session. When the accounts together exceed the limit, the slowest clients are
//! cut off first: those with the highest product of waiting bytes and time since they last read anything.
//!
//! Deliberately absent: disconnecting a client. The owner of its account does that, when it sees [`Account::is_cut`] or
//! is woken.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering},
    },
    task::Waker,
};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::time::Instant;

/// An account can be cut off only after it has held this many bytes.
const MIN_LISTED_BYTES: usize = 16 << 10;

#[derive(Debug)]
pub struct Backlog {
    limit: AtomicUsize,
    /// Signed, because a concurrent cut-off can subtract bytes before [`Account::add`] has added them.
    total: AtomicI64,
    born: Instant,
    listed: Mutex<HashMap<usize, Weak<Account>>>,
}

/// The bytes that wait for one client connection or one session.
pub struct Account {
    backlog: Arc<Backlog>,
    bytes: AtomicUsize,
    listed: AtomicBool,
    cut: AtomicBool,
    /// When the client last read something, in milliseconds after `born`. Maintained once the account is listed.
    moved: AtomicU64,
    waker: AtomicWaker,
    on_cut: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Account").field(&self.bytes).finish()
    }
}

impl Backlog {
    /// Limits all accounts together to `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit: AtomicUsize::new(limit),
            total: AtomicI64::new(0),
            born: Instant::now(),
            listed: Mutex::default(),
        })
    }

    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Bytes waiting in all accounts.
    #[must_use]
    pub fn bytes(&self) -> usize {
        usize::try_from(self.total.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Returns whether these bytes would fill more than half of the limit.
    #[must_use]
    pub fn is_half_used(&self, adding: usize) -> bool {
        self.bytes() + adding > self.limit.load(Ordering::Relaxed) / 2
    }

    #[must_use]
    pub fn account(self: &Arc<Self>) -> Arc<Account> {
        Arc::new(Account {
            backlog: self.clone(),
            bytes: AtomicUsize::new(0),
            listed: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            moved: AtomicU64::new(0),
            waker: AtomicWaker::new(),
            on_cut: OnceLock::new(),
        })
    }

    fn now(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Cuts off the slowest clients until the total is within the limit. Runs their `on_cut` callbacks, so do not call
    /// it while holding a lock that those take.
    pub fn settle(&self) {
        while self.bytes() > self.limit.load(Ordering::Relaxed) {
            let now = self.now();
            let slowest = {
                let listed = self.listed.lock();
                let waiting = listed.values().filter_map(Weak::upgrade).map(|account| {
                    let age = now.saturating_sub(account.moved.load(Ordering::Relaxed)) + 1;
                    let bytes = account.bytes.load(Ordering::Relaxed);
                    (bytes as u128 * u128::from(age), account)
                });
                // Dropping an account takes the lock, so the accounts are dropped after it is released.
                let waiting: Vec<_> = waiting.collect();
                drop(listed);
                let waiting = waiting.into_iter().filter(|(score, _)| *score > 0);
                waiting.max_by_key(|(score, _)| *score)
            };
            let Some((_, account)) = slowest else { return };
            account.cut();
        }
    }
}

impl Account {
    /// Charges `bytes` to the account. Returns `false` if the account is cut off. Call [`Backlog::settle`] afterwards,
    /// without holding a lock.
    #[must_use]
    pub fn add(self: &Arc<Self>, bytes: usize) -> bool {
        if self.is_cut() {
            return false;
        }
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let signed = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.backlog.total.fetch_add(signed, Ordering::Relaxed);
        if before == 0 && self.listed.load(Ordering::Relaxed) {
            self.moved.store(self.backlog.now(), Ordering::Relaxed);
        }
        if before + bytes >= MIN_LISTED_BYTES && !self.listed.swap(true, Ordering::Relaxed) {
            self.moved.store(self.backlog.now(), Ordering::Relaxed);
            let weak = Arc::downgrade(self);
            self.backlog.listed.lock().insert(self.key(), weak);
        }
        if self.is_cut() {
            // Cut off concurrently, perhaps before the bytes were added: subtract them again.
            self.take(usize::MAX);
            return false;
        }
        true
    }

    /// Releases `bytes` that were read or discarded.
    pub fn sub(&self, bytes: usize) {
        if bytes > 0 && self.bytes.load(Ordering::Relaxed) > 0 {
            self.take(bytes);
            if self.listed.load(Ordering::Relaxed) {
                self.moved.store(self.backlog.now(), Ordering::Relaxed);
            }
        }
    }

    fn take(&self, bytes: usize) {
        let before = self
            .bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
                Some(held.saturating_sub(bytes))
            })
            .unwrap_or_else(|held| held);
        let taken = i64::try_from(before.min(bytes)).unwrap_or(i64::MAX);
        self.backlog.total.fetch_sub(taken, Ordering::Relaxed);
    }

    fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
        let bytes = self.bytes.load(Ordering::Relaxed);
        self.take(usize::MAX);
        tracing::warn!(
            "disconnected a client that does not read its messages: {bytes} bytes were waiting"
        );
        self.waker.wake();
        if let Some(on_cut) = self.on_cut.get() {
            on_cut();
        }
    }

    /// Returns true if the client was cut off. Nothing is queued for it from then on.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    /// Registers the task to wake at a cut-off. The last registration replaces earlier ones.
    pub fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    /// Sets the callback for a cut-off. Only the first one is kept.
    pub fn on_cut(&self, does: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_cut.set(Box::new(does));
    }

    #[must_use]
    pub fn backlog(&self) -> &Arc<Backlog> {
        &self.backlog
    }

    /// Bytes waiting in this account.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn key(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.take(usize::MAX);
        if *self.listed.get_mut() {
            self.backlog.listed.lock().remove(&self.key());
        }
    }
}

/// Bytes charged to an account until this value is dropped.
#[derive(Debug)]
pub struct Charge {
    account: Arc<Account>,
    bytes: usize,
}

impl Charge {
    /// Charges `bytes`. Call [`Backlog::settle`] afterwards, without holding a lock.
    #[must_use]
    pub fn new(account: &Arc<Account>, bytes: usize) -> Self {
        let bytes = if account.add(bytes) { bytes } else { 0 };
        Self {
            account: account.clone(),
            bytes,
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.sub(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const KIB: usize = 1 << 10;

    #[tokio::test(start_paused = true)]
    async fn the_slowest_are_cut_off_first() {
        let backlog = Backlog::new(1000 * KIB);
        let [stalled, reading, small, large] = [(); 4].map(|()| backlog.account());
        assert!(stalled.add(300 * KIB) && reading.add(300 * KIB) && small.add(20 * KIB));
        tokio::time::advance(Duration::from_secs(5)).await;
        reading.sub(KIB);
        backlog.settle();
        assert!(large.add(300 * KIB));
        backlog.settle();
        assert!(!stalled.is_cut(), "there was room");
        // This addition exceeds the limit.
        assert!(large.add(200 * KIB));
        backlog.settle();
        assert!(stalled.is_cut());
        assert!([&reading, &small, &large].iter().all(|it| !it.is_cut()));
        assert_eq!(backlog.bytes(), (299 + 20 + 500) * KIB);
        // A cut-off account no longer counts, even if bytes are added to it or subtracted from it.
        stalled.sub(300 * KIB);
        assert!(!stalled.add(KIB));
        assert_eq!(backlog.bytes(), 819 * KIB);
        // No time has passed and no client has read, so the account with the most bytes is cut off.
        small.sub(KIB);
        assert!(large.add(500 * KIB));
        backlog.settle();
        assert!(large.is_cut() && !reading.is_cut() && !small.is_cut());
        assert_eq!(backlog.bytes(), 318 * KIB);
        drop((stalled, reading, small, large));
        assert_eq!(backlog.bytes(), 0);
        assert!(backlog.listed.lock().is_empty());
    }

    #[test]
    fn a_charge_is_taken_off_once() {
        let backlog = Backlog::new(100 * KIB);
        let account = backlog.account();
        let charge = Charge::new(&account, 60 * KIB);
        let called = Arc::new(AtomicBool::new(false));
        let seen = called.clone();
        account.on_cut(move || seen.store(true, Ordering::Relaxed));
        assert!(account.add(60 * KIB));
        backlog.settle();
        assert!(account.is_cut() && called.load(Ordering::Relaxed));
        drop(charge);
        assert_eq!(backlog.bytes(), 0);
    }
}
