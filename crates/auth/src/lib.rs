//! Authentication and permissions. A caller is identified by a Toolwharf key ([`Keys`]), by an access token of an
//! issuer in the settings ([`Tokens`]), or by the session of a browser that signed in with either ([`Browsers`]).
//!
//! The result is always a [`Principal`], so that the rest of the program sees no difference. Deliberately absent: the
//! role that a route needs (`rest`), and whether a request needs a key (`gateway::Guard`).

pub mod admin_token;
mod base;
mod browser;
mod claims;
mod code;
mod ended;
#[cfg(test)]
mod hostile;
mod identities;
mod issuer;
mod keys;
mod principal;
pub mod sealed;
pub mod tickets;
mod tokens;

pub use self::{
    base::{BASE, base_of},
    browser::{Browsers, PAGE_SECRET},
    claims::Refused,
    code::Codes,
    identities::Identities,
    keys::{Keys, PREFIX, bootstrap, hash, hint, new_token, register},
    principal::{Ambiguous, Principal, Role},
    tokens::Tokens,
};
