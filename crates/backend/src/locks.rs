//! Keyed locks.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};

use tokio::sync::Mutex;

/// Number of locks. Names with the same hash modulo this number share a lock.
const LOCK_COUNT: usize = 64;

/// Locks for any number of names.
pub(crate) struct Locks(Vec<Mutex<()>>);

impl Default for Locks {
    fn default() -> Self {
        Self(
            std::iter::repeat_with(Mutex::default)
                .take(LOCK_COUNT)
                .collect(),
        )
    }
}

impl Locks {
    pub(crate) fn of(&self, name: &(impl Hash + ?Sized)) -> &Mutex<()> {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(name);
        let at = usize::try_from(hash % LOCK_COUNT as u64).unwrap_or_default();
        &self.0[at]
    }
}
