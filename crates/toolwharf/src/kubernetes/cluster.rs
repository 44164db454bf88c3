//! The API server: what is asked of it, each with a deadline.

use std::{collections::BTreeMap, time::Duration};

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
use runtime::kubernetes::LABEL_INSTALL;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::definition::{GROUP, KIND, PLURAL, VERSION, api_version};
use crate::{
    master::{MASTER_KEY, OLD_MASTER_KEY},
    startup::{ADMIN_TOKEN, DATABASE_URL, env},
};

/// For one request.
const ASK: Duration = Duration::from_secs(15);
const CONNECT: Duration = Duration::from_secs(10);
/// A watch is opened anew after that, in seconds.
const WATCH: u32 = 60;
/// Nothing at all comes for so long: the connection is dead.
const SILENCE: Duration = Duration::from_secs(75);
/// Who applies the status.
const MANAGER: &str = "toolwharf";
/// What keeps a resource until its server is removed.
const FINALIZER: &str = "toolwharf.dev/server";

/// Variables of this gateway that open all that it has.
const OWN: [&str; 4] = [MASTER_KEY, OLD_MASTER_KEY, ADMIN_TOKEN, DATABASE_URL];
/// The type of a Secret with which whoever has it acts as a service account.
const ACCOUNT: &str = "kubernetes.io/service-account-token";

/// The resources of one namespace.
pub(super) struct Cluster {
    pub(super) namespace: String,
    pub(super) resources: Api<DynamicObject>,
    secrets: Api<Secret>,
    events: Api<Event>,
    definitions: Api<CustomResourceDefinition>,
}

/// Why a request came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("no Kubernetes cluster is configured: {0}")]
    Configuration(String),
    /// The API server's answer.
    #[error("the Kubernetes API server says: {1} ({0})")]
    Answer(u16, String),
    #[error("the Kubernetes API server does not answer: {0}")]
    Silent(String),
}

/// What is the matter with the definition of the resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Definition {
    /// With its uid.
    There(String),
    /// It is being deleted, and its resources with it.
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
        let mut config = match &settings.kubeconfig {
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
        config.connect_timeout = Some(CONNECT);
        config.read_timeout = Some(SILENCE);
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
        watcher::Config::default().timeout(WATCH)
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

    /// The values of some keys of Secrets, given by variable as the name of a Secret and a key; or what is missing.
    pub(super) async fn secrets(
        &self,
        wanted: &BTreeMap<String, (String, String)>,
    ) -> Result<Result<BTreeMap<String, String>, String>, Error> {
        let mut found: BTreeMap<&str, Secret> = BTreeMap::new();
        let mut values = BTreeMap::new();
        for (variable, (name, key)) in wanted {
            if !found.contains_key(name.as_str()) {
                match ask(self.secrets.get(name)).await {
                    // The author of a resource must not get what is in these.
                    Ok(secret) if let Some(whose) = whose(&secret, env) => {
                        return Ok(Err(format!(
                            "Secret `{name}` is {whose}: name one of yours for `{variable}`"
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
                    "Secret `{name}` has no key `{key}`, which `{variable}` is to be"
                )));
            };
            match String::from_utf8(value.0.clone()) {
                Ok(value) if !value.contains('\0') => drop(values.insert(variable.clone(), value)),
                _ => {
                    return Ok(Err(format!("`{key}` of Secret `{name}` is not a text")));
                }
            }
        }
        Ok(Ok(values))
    }

    /// Puts the finalizer on, or takes it off.
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
        // With the version that was seen: somebody else may be changing the list.
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
        let params = PatchParams::apply(MANAGER).force();
        ask(self
            .resources
            .patch_status(name(object), &params, &Patch::Apply(&patch)))
        .await
    }

    /// Tells an event, unless it was told already.
    pub(super) async fn tell(&self, event: &Event) -> Result<(), Error> {
        match ask(self.events.create(&PostParams::default(), event)).await {
            Ok(_) | Err(Error::Answer(409, _)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

async fn ask<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, Error> {
    match timeout(ASK, request).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(kube::Error::Api(status))) => {
            Err(Error::Answer(status.code, status.message.trim().to_owned()))
        }
        Ok(Err(error)) => Err(Error::Silent(model::with_causes(&error))),
        Err(_) => Err(Error::Silent(format!("within {} s", ASK.as_secs()))),
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

/// Whose a Secret is that is nobody's to name: it has the variables of a server or of this gateway, or is an account's token.
fn whose(secret: &Secret, env: impl Fn(&str) -> Option<String>) -> Option<&'static str> {
    let labels = secret.metadata.labels.as_ref();
    let is_a_servers = labels.is_some_and(|labels| labels.contains_key(LABEL_INSTALL));
    let own: Vec<String> = OWN.iter().filter_map(|variable| env(variable)).collect();
    let is_own = |value: &ByteString| {
        let value = value.0.trim_ascii();
        !value.is_empty() && own.iter().any(|own| own.trim().as_bytes() == value)
    };
    if is_a_servers || secret.data.iter().flat_map(BTreeMap::values).any(is_own) {
        Some("Toolwharf's own")
    } else if secret.type_.as_deref() == Some(ACCOUNT) {
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
            // It is given, and says nothing.
            DATABASE_URL => Some(String::new()),
            _ => None,
        };
        for (value, kind, expected) in [
            ("twh_0123456789\n", "Opaque", Some("Toolwharf's own")),
            ("token", ACCOUNT, Some("a service account's token")),
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
