//! Checks the claims of a token (issuer, audience, time and scopes; RFC 9068, section 4) and maps them to a principal.
//!
//! Does no I/O. The caller has already checked the token's signature, or had the issuer confirm the token.

use std::{collections::BTreeMap, sync::Arc};

use model::OidcSettings;
use serde_json::{Map, Value};

use super::Principal;

/// Maximum clock difference to an issuer, in seconds.
pub(super) const SKEW_SECONDS: i64 = 60;
/// Maximum bytes of a subject.
const MAX_SUBJECT_BYTES: usize = 255;

pub(super) type Claims = Map<String, Value>;

/// A valid token.
#[derive(Clone, Debug)]
pub(crate) struct Verified {
    pub(crate) principal: Arc<Principal>,
    /// Expiry including the allowed skew, in seconds since 1970.
    pub(super) ends_at: i64,
    /// The paths to which the token is limited; `None`: no limit.
    pub(super) paths: Option<Vec<String>>,
}

impl Verified {
    /// Returns true if the token may be used for this path.
    pub(super) fn covers(&self, path: &str) -> bool {
        self.paths.as_ref().is_none_or(|paths| {
            paths.iter().any(|own| {
                let rest = path.strip_prefix(own.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
        })
    }
}

/// Checks everything except the signature. `bases`: addresses of this gateway. `now`: seconds since 1970. `known`: the
/// issuer confirmed the token, so `iss` and `exp` may be missing.
///
/// # Errors
/// The claim that failed the check.
pub(super) fn verify(
    name: &str,
    settings: &OidcSettings,
    bases: &[String],
    claims: &Claims,
    now: i64,
    known: bool,
) -> Result<Verified, Refused> {
    let issuer = text(claims, "iss");
    if issuer.map_or(!known, |issuer| issuer != settings.issuer) {
        let why = format!("it is from another issuer than `{}`", settings.issuer);
        return Err(invalid(&why));
    }
    if text(claims, "typ").is_some_and(|typ| typ.eq_ignore_ascii_case("id")) {
        return Err(invalid("it is an ID token: send the access token"));
    }
    let ends_at = time(claims, "exp")?;
    let ends_at = match ends_at {
        Some(end) => end.saturating_add(SKEW_SECONDS),
        None if known => i64::MAX,
        None => return Err(invalid("it has no `exp` (expiry)")),
    };
    if ends_at <= now {
        let ago = now.saturating_sub(ends_at - SKEW_SECONDS);
        return Err(invalid(&format!(
            "it expired {ago} s ago, according to this machine's clock"
        )));
    }
    for claim in ["nbf", "iat"] {
        let ahead = time(claims, claim)?.unwrap_or(0).saturating_sub(now);
        if ahead > SKEW_SECONDS {
            return Err(invalid(&format!(
                "its `{claim}` is {ahead} s ahead of the clock of this machine: either this clock or the issuer's is wrong"
            )));
        }
    }
    let paths = audience(settings, bases, claims)?;
    let scopes = scopes(claims);
    if !settings
        .scopes
        .iter()
        .all(|scope| scopes.contains(&scope.as_str()))
    {
        return Err(Refused::Scope);
    }
    Ok(Verified {
        principal: principal(name, settings, claims)?,
        ends_at,
        paths,
    })
}

/// Checks an ID token for this client, except its signature and nonce (OpenID Connect Core 3.1.3.7). Returns its user.
///
/// # Errors
/// The claim that failed the check.
pub(super) fn identity(
    name: &str,
    settings: &OidcSettings,
    claims: &Claims,
    client: &str,
    now: i64,
) -> Result<Arc<Principal>, Refused> {
    if text(claims, "iss") != Some(settings.issuer.as_str()) {
        let issuer = &settings.issuer;
        let why = format!("the ID token is from another issuer than `{issuer}`");
        return Err(invalid(&why));
    }
    let audiences = strings(claims.get("aud"));
    let party = text(claims, "azp");
    if !audiences.contains(&client) || party.is_some_and(|party| party != client) {
        let why = format!("the ID token is not for the client `{client}` (`aud`, `azp`)");
        return Err(invalid(&why));
    }
    if time(claims, "exp")?.is_none_or(|end| end.saturating_add(SKEW_SECONDS) <= now) {
        return Err(invalid(
            "the ID token has expired, according to this machine's clock",
        ));
    }
    principal(name, settings, claims)
}

/// Builds the principal, with the roles that the access rules grant.
fn principal(
    name: &str,
    settings: &OidcSettings,
    claims: &Claims,
) -> Result<Arc<Principal>, Refused> {
    // A client that acts for itself may have no `sub`. The kind tells clients from users of the same name.
    let (kind, subject) = match (text(claims, "sub"), text(claims, "client_id")) {
        (None, Some(client)) => ("client", client),
        (subject, _) => ("user", subject.unwrap_or_default()),
    };
    if subject.is_empty() {
        return Err(invalid("the token has no `sub`"));
    }
    if subject.chars().any(char::is_control) {
        return Err(invalid("the token's `sub` has control characters"));
    }
    if subject.len() > MAX_SUBJECT_BYTES {
        let why = format!("the token's `sub` has more than {MAX_SUBJECT_BYTES} bytes");
        return Err(invalid(&why));
    }
    let mut principal = Principal {
        id: format!("{kind}:{name}:{subject}").into(),
        role: None,
        projects: BTreeMap::new(),
        tools: None,
    };
    for rule in &settings.access {
        let matches = rule
            .claim
            .as_ref()
            .is_none_or(|(claim, values)| values.iter().any(|value| has(claims, claim, value)));
        if matches {
            principal.grant(rule.role, &rule.projects);
        }
    }
    if !principal.is_anybody() {
        return Err(Refused::Nobody(principal.id));
    }
    Ok(Arc::new(principal))
}

/// The paths of this gateway among the token's audiences.
fn audience(
    settings: &OidcSettings,
    bases: &[String],
    claims: &Claims,
) -> Result<Option<Vec<String>>, Refused> {
    let audiences = strings(claims.get("aud"));
    if !settings.audiences.is_empty() {
        let ours = |audience: &&str| settings.audiences.contains(*audience);
        return match audiences.iter().any(ours) {
            true => Ok(None),
            false => Err(invalid(&foreign(&audiences))),
        };
    }
    let path = |audience: &&str| {
        let path = bases
            .iter()
            .find_map(|base| audience.strip_prefix(base.as_str()))?;
        let path = path.trim_end_matches('/');
        (path.is_empty() || path.starts_with('/')).then(|| path.to_owned())
    };
    let paths: Vec<String> = audiences.iter().filter_map(path).collect();
    match paths.is_empty() {
        true => Err(invalid(&foreign(&audiences))),
        false if paths.iter().any(String::is_empty) => Ok(None),
        false => Ok(Some(paths)),
    }
}

fn foreign(audiences: &[&str]) -> String {
    match audiences.first() {
        Some(first) => {
            let first: String = first.chars().take(100).collect();
            format!("it is for `{first}`, which is not this gateway")
        }
        None => "it has no audience (`aud`)".to_owned(),
    }
}

/// `scope` (RFC 9068), or `scp` (Entra, Okta).
fn scopes(claims: &Claims) -> Vec<&str> {
    let all = ["scope", "scp"].map(|name| strings(claims.get(name)));
    let all = all.into_iter().flatten();
    all.flat_map(str::split_ascii_whitespace).collect()
}

/// Returns true if a claim equals or contains the value. The name may be a dotted path such as `realm_access.roles`.
fn has(claims: &Claims, name: &str, value: &str) -> bool {
    let found = claims.get(name).or_else(|| {
        let mut parts = name.split('.');
        let first = claims.get(parts.next()?)?;
        parts.try_fold(first, |found, part| found.get(part))
    });
    strings(found).contains(&value)
}

fn strings(value: Option<&Value>) -> Vec<&str> {
    match value {
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

pub(super) fn text<'c>(claims: &'c Claims, name: &str) -> Option<&'c str> {
    claims.get(name)?.as_str()
}

/// A `NumericDate`, which may have a fraction.
fn time(claims: &Claims, name: &str) -> Result<Option<i64>, Refused> {
    let Some(value) = claims.get(name) else {
        return Ok(None);
    };
    let seconds = value
        .as_i64()
        .or_else(|| value.as_f64().map(|seconds| seconds as i64));
    match seconds {
        Some(seconds) => Ok(Some(seconds)),
        None => Err(invalid(&format!("its `{name}` is not a time"))),
    }
}

pub(super) fn invalid(why: &str) -> Refused {
    Refused::Invalid(why.to_owned())
}

/// Why a token is refused.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// The token is invalid; contains the reason.
    Invalid(String),
    /// The token lacks scopes.
    Scope,
    /// The user has no role; contains the id that they would have.
    Nobody(Arc<str>),
    /// The token cannot be checked now.
    Away(String),
}

impl Refused {
    pub(super) fn of_database(error: store::Error) -> Self {
        Self::Away(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use model::{AccessRule, ProjectId, Role};
    use serde_json::json;

    use super::*;

    const NOW: i64 = 1_000_000;

    fn settings() -> OidcSettings {
        let rule = |claim: &str, value: &str, role, project: Option<&str>| AccessRule {
            claim: Some((claim.to_owned(), BTreeSet::from([value.to_owned()]))),
            role,
            projects: project
                .map(|id| ProjectId::parse(id).expect(id))
                .into_iter()
                .collect(),
        };
        OidcSettings {
            issuer: "https://login.example/realms/corp".to_owned(),
            scopes: ["mcp:call", "mcp:read"].map(str::to_owned).into(),
            access: vec![
                rule("groups", "ml", Role::Call, Some("ml")),
                rule("realm_access.roles", "boss", Role::Manage, None),
                rule("https://example.com/team", "red", Role::Read, Some("red")),
            ],
            ..OidcSettings::default()
        }
    }

    /// The result for valid claims with `changes`; `null` removes a claim.
    fn outcome(settings: &OidcSettings, changes: Value, known: bool) -> Result<Verified, Refused> {
        let mut claims = json!({
            "iss": "https://login.example/realms/corp", "sub": "ann", "aud": "https://tools.example/mcp",
            "iat": NOW, "nbf": NOW, "exp": NOW + 300, "scope": "mcp:read mcp:call other", "groups": ["x", "ml"],
        });
        for (name, value) in changes.as_object().expect("an object") {
            claims[name] = value.clone();
        }
        let claims = claims.as_object_mut().expect("an object");
        claims.retain(|_, value| !value.is_null());
        let bases = ["https://tools.example".to_owned()];
        verify("corp", settings, &bases, claims, NOW, known)
    }

    #[test]
    fn a_good_token_makes_a_principal() {
        let check = |changes: Value, path: &str, expected: &str| {
            let verified = outcome(&settings(), changes.clone(), false);
            let verified = verified.unwrap_or_else(|why| panic!("{changes}: {why:?}"));
            let who = &verified.principal;
            assert_eq!(&*who.id, "user:corp:ann");
            let rights = format!("{:?} {:?}", who.role, who.projects);
            assert_eq!(rights, expected, "{changes}");
            assert!(verified.covers(path), "{changes}: {:?}", verified.paths);
        };
        let ml = r#"None {"ml": Call}"#;
        check(json!({}), "/mcp", ml);
        check(json!({}), "/mcp/ml/server", ml);
        check(json!({ "groups": "ml", "typ": "Bearer" }), "/mcp", ml);
        let (early, late) = (NOW - SKEW_SECONDS + 1, NOW + SKEW_SECONDS);
        let skewed = json!({ "exp": early, "nbf": late, "iat": late });
        check(skewed, "/mcp", ml);
        check(json!({ "exp": (NOW as f64) + 0.5 }), "/mcp", ml);
        let listed = json!({ "scope": null, "scp": ["mcp:call", "mcp:read"] });
        check(listed, "/mcp", ml);
        let several = json!({ "aud": ["other", "https://tools.example/"] });
        check(several, "/api/v1", ml);
        let project = json!({ "aud": "https://tools.example/mcp/ml/" });
        check(project, "/mcp/ml", ml);
        let nested = json!({ "groups": null, "realm_access": { "roles": ["boss"] } });
        check(nested, "/mcp", "Some(Manage) {}");
        let url = json!({ "groups": null, "https://example.com/team": "red" });
        check(url, "/mcp", r#"None {"red": Read}"#);
    }

    #[test]
    fn a_token_for_one_endpoint_is_not_for_another() {
        let aud = json!({ "aud": "https://tools.example/mcp/ml" });
        let verified = outcome(&settings(), aud, false).expect("good");
        for path in ["/mcp", "/mcp/mlx", "/mcp/other", "/api/v1"] {
            assert!(!verified.covers(path), "{path}");
        }
        let named = OidcSettings {
            audiences: BTreeSet::from(["api://toolwharf".to_owned()]),
            ..settings()
        };
        let verified = outcome(&named, json!({ "aud": "api://toolwharf" }), false);
        assert!(verified.expect("good").covers("/api/v1"));
        assert!(outcome(&named, json!({}), false).is_err());
    }

    #[test]
    fn what_does_not_suffice_is_named() {
        let check = |changes: Value, expected: &str| {
            let refused = outcome(&settings(), changes.clone(), false).expect_err("refused");
            let told = format!("{refused:?}");
            assert!(told.contains(expected), "{changes}: {told}");
        };
        let similar = json!({ "iss": "https://login.example/realms/corp/" });
        check(similar, "another issuer");
        check(json!({ "iss": null }), "another issuer");
        check(json!({ "typ": "ID" }), "the access token");
        check(json!({ "exp": NOW - 300 }), "expired 300 s ago");
        check(json!({ "exp": i64::MIN }), "expired");
        check(json!({ "exp": null }), "no `exp`");
        check(json!({ "exp": "soon" }), "`exp` is not a time");
        check(json!({ "nbf": NOW + 300 }), "`nbf` is 300 s ahead");
        check(json!({ "iat": i64::MAX }), "`iat` is");
        check(json!({ "aud": null }), "no audience");
        let evil = json!({ "aud": "https://tools.example.evil/mcp" });
        check(evil, "not this gateway");
        check(json!({ "aud": ["a", "https://other.example"] }), "for `a`");
        check(json!({ "sub": null }), "no `sub`");
        check(json!({ "sub": "a\nb" }), "`sub` has control characters");
        check(json!({ "sub": "a".repeat(256) }), "`sub` has more than");
        check(json!({ "scope": "mcp:call" }), "Scope");
        check(json!({ "scope": null }), "Scope");
        check(json!({ "groups": ["ML"] }), r#"Nobody("user:corp:ann")"#);
        check(json!({ "groups": { "ml": true } }), "Nobody");
    }

    #[test]
    fn an_issuer_that_was_asked_need_not_repeat_itself() {
        let told = json!({ "iss": null, "exp": null });
        let verified = outcome(&settings(), told, true).expect("good");
        assert_eq!(verified.ends_at, i64::MAX);
        for changes in [
            json!({ "iss": "https://other.example" }),
            json!({ "aud": null }),
            json!({ "exp": NOW - 300 }),
        ] {
            let refused = outcome(&settings(), changes.clone(), true);
            assert!(refused.is_err(), "{changes}");
        }
    }
}
