//! Fair shares of a resource that all clients have in common: open event streams, per principal.
//!
//! A principal that holds four times as many shares as are still free gets no more. One client alone can take 4/5 of
//! them, two can take 4/9 each, and some always remain for the next client.
//!
//! A share also signals revocation: when a key is revoked, all streams of its principal end.

use std::{collections::HashMap, sync::Arc};

use model::fair_share;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

#[derive(Debug, Default)]
pub(crate) struct Shares {
    holders: Mutex<Holders>,
}

#[derive(Debug, Default)]
struct Holders {
    total: usize,
    by_principal: HashMap<Arc<str>, Holder>,
}

#[derive(Debug, Default)]
struct Holder {
    held: usize,
    over: CancellationToken,
}

#[derive(Debug)]
pub(crate) struct Share {
    shares: Arc<Shares>,
    principal: Arc<str>,
    over: CancellationToken,
}

impl Shares {
    /// Takes one of `most` shares for this principal; `None` if the principal already has its fair part.
    pub(crate) fn take(self: &Arc<Self>, principal: &Arc<str>, most: usize) -> Option<Share> {
        let mut holders = self.holders.lock();
        let held = holders.by_principal.get(principal).map_or(0, |it| it.held);
        let fair = fair_share(held, holders.total, most);
        fair.then(|| self.give(&mut holders, principal))
    }

    /// Takes one more share without the check. Used for streams that have already begun, and that end without the
    /// client's help.
    pub(crate) fn join(self: &Arc<Self>, principal: &Arc<str>) -> Share {
        self.give(&mut self.holders.lock(), principal)
    }

    fn give(self: &Arc<Self>, holders: &mut Holders, principal: &Arc<str>) -> Share {
        holders.total += 1;
        let holder = holders.by_principal.entry(principal.clone()).or_default();
        holder.held += 1;
        Share {
            shares: self.clone(),
            principal: principal.clone(),
            over: holder.over.clone(),
        }
    }

    /// Revokes all shares of the principal.
    pub(crate) fn revoke(&self, principal: &str) {
        if let Some(holder) = self.holders.lock().by_principal.get(principal) {
            holder.over.cancel();
        }
    }
}

impl Share {
    /// Cancelled when the share is revoked.
    pub(crate) fn over(&self) -> &CancellationToken {
        &self.over
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut holders = self.shares.holders.lock();
        holders.total -= 1;
        if let Some(holder) = holders.by_principal.get_mut(&self.principal) {
            holder.held -= 1;
            if holder.held == 0 {
                holders.by_principal.remove(&self.principal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_can_take_all() {
        let shares = Arc::<Shares>::default();
        let [one, two]: [Arc<str>; 2] = ["one".into(), "two".into()];
        let all = |who: &Arc<str>| -> Vec<Share> {
            std::iter::from_fn(|| shares.take(who, 100)).collect()
        };
        let ones = all(&one);
        assert_eq!(ones.len(), 80);
        let twos = all(&two);
        assert_eq!(twos.len(), 16);
        shares.revoke("one");
        assert!(ones[0].over().is_cancelled() && !twos[0].over().is_cancelled());
        drop(ones);
        assert_eq!(all(&two).len(), 64);
        assert!(
            !shares.join(&one).over().is_cancelled(),
            "it is another key's"
        );
        assert!(shares.holders.lock().by_principal.contains_key("two"));
        drop(twos);
        assert!(shares.holders.lock().by_principal.is_empty());
    }
}
