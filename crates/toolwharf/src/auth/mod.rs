//! Who asks, and what they may do: by a key of ours ([`Keys`]), or by an access token of an issuer in the settings ([`Tokens`]).
//!
//! However somebody is known, the outcome is a [`Principal`], so that nothing behind this module sees a difference.
//! Deliberately absent: which role a route needs (`rest`), and whether a key is needed at all (`gateway::Guard`).

mod claims;
mod ended;
mod fetch;
#[cfg(test)]
mod hostile;
mod identities;
mod issuer;
mod keys;
mod principal;
mod tokens;

pub(crate) use self::{
    identities::Identities,
    keys::{Keys, PREFIX, bootstrap, hash, hint, new_token, register},
    principal::{Ambiguous, Principal, Role},
    tokens::{Refused, Tokens},
};
