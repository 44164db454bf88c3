//! Who asks, and what they may do: by a key of ours ([`Keys`]), by an access token of an issuer in the settings ([`Tokens`]), or by the
//! session of a browser that signed in with either ([`Browsers`]).
//!
//! However somebody is known, the outcome is a [`Principal`], so that nothing behind this module sees a difference.
//! Deliberately absent: which role a route needs (`rest`), and whether a key is needed at all (`gateway::Guard`).

mod browser;
mod claims;
mod code;
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
    browser::{Browsers, PAGE_SECRET},
    code::{Answer, Codes},
    identities::Identities,
    keys::{Keys, PREFIX, bootstrap, hash, hint, new_token, register},
    principal::{Ambiguous, Principal, Role},
    tokens::{Refused, Tokens},
};
