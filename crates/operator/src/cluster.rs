//! The client of the Kubernetes API server. Every request has a deadline.

use std::{collections::BTreeMap, time::Duration};

use containers::kubernetes::{LABEL_INSTALL, without_proxy};
use k8s_openapi::{
    ByteString,
    api::core::v1::{Event, Secret},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Config,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    runtime::watcher,
};
use model::KubernetesSettings;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::definition::{GROUP, KIND, PLURAL, VERSION, api_version};
use auth::admin_token::ADMIN_TOKEN;
use backend::{
    master::{MASTER_KEY, OLD_MASTER_KEY},
    startup::{DATABASE_URL, env},
};

/// Deadline of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Seconds after which a watch is reopened.
const WATCH_SECONDS: u32 = 60;
/// Read timeout. A connection that is silent for this long is dead.
const READ_TIMEOUT: Duration = Duration::from_secs(75);
/// The field manager for the status.
const FIELD_MANAGER: &str = "toolwharf";
/// The finalizer that keeps a resource until its server is removed.
const FINALIZER: &str = "toolwharf.dev/server";

/// Environment variables of this gateway whose values give access to all of its data.
const OWN_VARIABLES: [&str; 4] = [MASTER_KEY, OLD_MASTER_KEY, ADMIN_TOKEN, DATABASE_URL];
/// The type of Secrets whose token authenticates as a service account.
const ACCOUNT_TOKEN: &str = "kubernetes.io/service-account-token";

pub(super) struct Cluster {
    pub(super) namespace: String,
    pub(super) resources: Api<DynamicObject>,
    secrets: Api<Secret>,
    events: Api<Event>,
    definitions: Api<CustomResourceDefinition>,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("no Kubernetes cluster is configured: {0}")]
    Configuration(String),
    /// An error response of the API server.
    #[error("the Kubernetes API server says: {1} ({0})")]
    Answer(u16, String),
    #[error("cannot reach the Kubernetes API server: {0}")]
    Silent(String),
}

/// The state of the resource definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Definition {
    /// The definition exists and has this uid.
    There(String),
    /// The definition is being deleted, together with all resources.
    Going,
    Gone,
}

impl Cluster {
    pub(super) async fn new(settings: &KubernetesSettings, namespace: &str) -> Result<Self, Error> {
        let wrong = |error: &(dyn std::error::Error + 'static)| {
            Error::Configuration(model::with_causes(error))
        };
        let of = KubeConfigOptions {
            context: settings.context.clone(),
            ..KubeConfigOptions::default()
        };
        let config = match &settings.kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path).map_err(|error| wrong(&error))?;
                let config = Config::from_custom_kubeconfig(file, &of).await;
                config.map_err(|error| wrong(&error))?
            }
            None if of.context.is_some() => {
                let config = Config::from_kubeconfig(&of).await;
                config.map_err(|error| wrong(&error))?
            }
            None => Config::infer().await.map_err(|error| wrong(&error))?,
        };
        let mut config = without_proxy(config, env);
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.read_timeout = Some(READ_TIMEOUT);
        let client = Client::try_from(config).map_err(|error| wrong(&error))?;
        let kind = GroupVersionKind::gvk(GROUP, VERSION, KIND);
        let kind = ApiResource::from_gvk_with_plural(&kind, PLURAL);
        Ok(Self {
            namespace: namespace.to_owned(),
            resources: Api::namespaced_with(client.clone(), namespace, &kind),
            secrets: Api::namespaced(client.clone(), namespace),
            events: Api::namespaced(client.clone(), namespace),
            definitions: Api::all(client),
        })
    }

    pub(super) fn watching() -> watcher::Config {
        watcher::Config::default().timeout(WATCH_SECONDS)
    }

    pub(super) async fn definition(&self) -> Result<Definition, Error> {
        let name = format!("{PLURAL}.{GROUP}");
        match ask(self.definitions.get_metadata(&name)).await {
            Ok(found) if found.metadata.deletion_timestamp.is_some() => Ok(Definition::Going),
            Ok(found) => Ok(Definition::There(found.metadata.uid.unwrap_or_default())),
            Err(Error::Answer(404, _)) => Ok(Definition::Gone),
            Err(error) => Err(error),
        }
    }

    /// Reads values from Secrets. `wanted` maps variables to a Secret's name and a key. The inner error names a missing
    /// or forbidden value.
    pub(super) async fn secrets(
        &self,
        wanted: &BTreeMap<String, (String, String)>,
    ) -> Result<Result<BTreeMap<String, String>, String>, Error> {
        let mut found: BTreeMap<&str, Secret> = BTreeMap::new();
        let mut values = BTreeMap::new();
        for (variable, (name, key)) in wanted {
            if !found.contains_key(name.as_str()) {
                match ask(self.secrets.get(name)).await {
                    // This Secret has values that the author of a resource must not read.
                    Ok(secret) if let Some(whose) = whose(&secret, env) => {
                        return Ok(Err(format!(
                            "Secret `{name}` is {whose}, which servers cannot use: name another Secret for `{variable}`"
                        )));
                    }
                    Ok(secret) => drop(found.insert(name, secret)),
                    Err(Error::Answer(404, _)) => {
                        return Ok(Err(format!("there is no Secret `{name}` for `{variable}`")));
                    }
                    Err(error) => return Err(error),
                }
            }
            let secret = &found[name.as_str()];
            let value = secret.data.as_ref().and_then(|data| data.get(key));
            let Some(value) = value else {
                return Ok(Err(format!(
                    "Secret `{name}` has no key `{key}` for `{variable}`"
                )));
            };
            match String::from_utf8(value.0.clone()) {
                Ok(value) if !value.contains('\0') => drop(values.insert(variable.clone(), value)),
                _ => {
                    return Ok(Err(format!("`{key}` of Secret `{name}` is not UTF-8 text")));
                }
            }
        }
        Ok(Ok(values))
    }

    /// Adds or removes the finalizer.
    pub(super) async fn finalize(
        &self,
        object: &DynamicObject,
        on: bool,
    ) -> Result<DynamicObject, Error> {
        let mut all = object.metadata.finalizers.clone().unwrap_or_default();
        all.retain(|name| name != FINALIZER);
        if on {
            all.push(FINALIZER.to_owned());
        }
        // The patch names the resource version, since another client may be changing the finalizers.
        let version = &object.metadata.resource_version;
        let patch = json!({"metadata": {"resourceVersion": version, "finalizers": all}});
        let params = PatchParams::default();
        ask(self
            .resources
            .patch(name(object), &params, &Patch::Merge(&patch)))
        .await
    }

    pub(super) async fn set_status(
        &self,
        object: &DynamicObject,
        status: &Value,
    ) -> Result<DynamicObject, Error> {
        let patch = json!({
            "apiVersion": api_version(),
            "kind": KIND,
            "metadata": {"name": name(object)},
            "status": status,
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        ask(self
            .resources
            .patch_status(name(object), &params, &Patch::Apply(&patch)))
        .await
    }

    /// Reports an event, unless it was reported already.
    pub(super) async fn tell(&self, event: &Event) -> Result<(), Error> {
        match ask(self.events.create(&PostParams::default(), event)).await {
            Ok(_) | Err(Error::Answer(409, _)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

async fn ask<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, Error> {
    match timeout(REQUEST_TIMEOUT, request).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(kube::Error::Api(status))) => {
            Err(Error::Answer(status.code, status.message.trim().to_owned()))
        }
        Ok(Err(error)) => Err(Error::Silent(model::with_causes(&error))),
        Err(_) => Err(Error::Silent(format!(
            "within {} s",
            REQUEST_TIMEOUT.as_secs()
        ))),
    }
}

pub(super) fn name(object: &DynamicObject) -> &str {
    object.metadata.name.as_deref().unwrap_or_default()
}

pub(super) fn uid(object: &DynamicObject) -> &str {
    object.metadata.uid.as_deref().unwrap_or_default()
}

pub(super) fn has_finalizer(object: &DynamicObject) -> bool {
    let all = object.metadata.finalizers.iter().flatten();
    all.into_iter().any(|name| name == FINALIZER)
}

pub(super) fn is_going(object: &DynamicObject) -> bool {
    object.metadata.deletion_timestamp.is_some()
}

/// Returns whose Secret this is, if resources must not refer to it, because it contains variables of a server or of
/// this gateway, or a service account's token.
fn whose(secret: &Secret, env: impl Fn(&str) -> Option<String>) -> Option<&'static str> {
    let labels = secret.metadata.labels.as_ref();
    let is_a_servers = labels.is_some_and(|labels| labels.contains_key(LABEL_INSTALL));
    let own: Vec<String> = OWN_VARIABLES
        .iter()
        .filter_map(|variable| env(variable))
        .collect();
    let is_own = |value: &ByteString| {
        let value = value.0.trim_ascii();
        !value.is_empty() && own.iter().any(|own| own.trim().as_bytes() == value)
    };
    if is_a_servers || secret.data.iter().flat_map(BTreeMap::values).any(is_own) {
        Some("Toolwharf's own")
    } else if secret.type_.as_deref() == Some(ACCOUNT_TOKEN) {
        Some("a service account's token")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d08_secrets_of_the_gateway_and_of_accounts_are_nobody_s_to_name() {
        let secret = |value: &str, kind: &str| {
            let secret = json!({"type": kind, "data": {"key": ByteString(value.into())}});
            serde_json::from_value::<Secret>(secret).expect("a Secret")
        };
        let env = |variable: &str| match variable {
            ADMIN_TOKEN => Some("twh_0123456789".to_owned()),
            // This variable is set, but empty.
            DATABASE_URL => Some(String::new()),
            _ => None,
        };
        for (value, kind, expected) in [
            ("twh_0123456789\n", "Opaque", Some("Toolwharf's own")),
            ("token", ACCOUNT_TOKEN, Some("a service account's token")),
            ("", "Opaque", None),
            ("twh_012345678", "Opaque", None),
        ] {
            assert_eq!(
                whose(&secret(value, kind), env),
                expected,
                "{value:?} of {kind}"
            );
        }
    }
}
