//! A client for the API server, with a deadline for every request.

use std::env;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Api, DeleteParams, ListParams, PostParams, Preconditions};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::Options;
use runtime::unit::Error;

pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// A cluster, and the APIs of the objects in the servers' namespace.
#[derive(Clone)]
pub(super) struct Cluster {
    pub(super) client: Client,
    config: Arc<Config>,
    pub(super) namespace: String,
    /// The namespace of this process's own pod, if it runs in this cluster.
    pub(super) home: Option<String>,
    /// A reference to that pod, if servers are in its namespace. `None` if no pod there has the host name of this
    /// process.
    pub(super) gateway: Option<OwnerReference>,
    pub(super) pods: Api<Pod>,
    pub(super) secrets: Api<Secret>,
    pub(super) policies: Api<NetworkPolicy>,
    pub(super) claims: Api<PersistentVolumeClaim>,
    pub(super) events: Api<Event>,
}

impl Cluster {
    pub(super) async fn new(options: &Options) -> Result<Self, Error> {
        let missing = |why: &(dyn std::error::Error + 'static)| missing(&model::with_causes(why));
        let of = KubeConfigOptions {
            context: options.context.clone(),
            ..KubeConfigOptions::default()
        };
        let outside = match &options.kubeconfig {
            Some(path) => {
                let read = Kubeconfig::read_from(path).map_err(|why| missing(&why))?;
                Config::from_custom_kubeconfig(read, &of).await
            }
            None => Config::from_kubeconfig(&of).await,
        };
        let is_named = options.kubeconfig.is_some() || options.context.is_some();
        let (config, is_inside) = match outside {
            Ok(config) => (config, false),
            Err(why) if is_named => return Err(missing(&why)),
            Err(why) => match Config::incluster() {
                Ok(config) => (config, true),
                Err(_) => return Err(missing(&why)),
            },
        };
        let config = without_proxy(config, |name| env::var(name).ok());
        let home = is_inside.then(|| config.default_namespace.clone());
        let namespace = options.namespace.clone();
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config.clone()).map_err(|why| missing(&why))?;
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        let gateway = match env::var("HOSTNAME") {
            Ok(name) if home.as_ref() == Some(&namespace) => {
                let found = call("read the gateway's own pod", pods.get_opt(&name)).await;
                found.map_err(Error::from)?.map(|pod| own(pod.metadata))
            }
            _ => None,
        };
        Ok(Self {
            pods,
            secrets: Api::namespaced(client.clone(), &namespace),
            policies: Api::namespaced(client.clone(), &namespace),
            claims: Api::namespaced(client.clone(), &namespace),
            events: Api::namespaced(client.clone(), &namespace),
            client,
            config: Arc::new(config),
            namespace,
            home,
            gateway,
        })
    }

    /// Returns a client without open connections. Use it if the pooled connections of `client` may have broken
    /// unnoticed.
    pub(super) fn anew(&self) -> Result<Client, Error> {
        let client = Client::try_from(Config::clone(&self.config));
        client.map_err(|why| missing(&model::with_causes(&why)))
    }
}

/// Removes the proxy that kube takes from the environment and cannot use. The API server belongs to this installation and
/// is reached directly. A `proxy-url` of the kubeconfig stays.
pub fn without_proxy(mut config: Config, variable: impl Fn(&str) -> Option<String>) -> Config {
    let taken = ["HTTPS_PROXY", "https_proxy"].into_iter().any(|name| {
        let url = variable(name).and_then(|url| url.parse().ok());
        url.is_some() && url == config.proxy_url
    });
    if taken {
        config.proxy_url = None;
    }
    config
}

/// An owner reference to a pod. Kubernetes deletes an object together with its owner.
fn own(pod: ObjectMeta) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: pod.name.unwrap_or_default(),
        uid: pod.uid.unwrap_or_default(),
        ..OwnerReference::default()
    }
}

fn missing(why: &str) -> Error {
    Error::Unavailable(format!(
        "no Kubernetes cluster is configured: {why}; name a kubeconfig in `[kubernetes] kubeconfig`, or run Toolwharf in the \
         cluster with a service account"
    ))
}

/// Why a request failed.
pub(super) enum Call {
    /// The API server's response, with its status.
    Api(u16, String),
    Other(Error),
}

impl From<Call> for Error {
    fn from(call: Call) -> Self {
        match call {
            Call::Api(403, why) if !why.contains("exceeded quota") => {
                Self::Unavailable(format!("the Kubernetes API server denied a request: {why}"))
            }
            Call::Api(status, why) => {
                Self::Failed(format!("the Kubernetes API server says: {why} ({status})"))
            }
            Call::Other(error) => error,
        }
    }
}

/// Runs one request with a deadline.
pub(super) async fn call<T>(
    what: &'static str,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, Call> {
    match timeout(REQUEST_TIMEOUT, request).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(kube::Error::Api(status))) => {
            Err(Call::Api(status.code, status.message.trim().to_owned()))
        }
        Ok(Err(error)) => Err(Call::Other(Error::Failed(format!(
            "cannot {what}: {}",
            model::with_causes(&error)
        )))),
        Err(_) => Err(Call::Other(Error::Timeout {
            what,
            within: REQUEST_TIMEOUT,
        })),
    }
}

/// Creates an object, or keeps the existing one.
pub(super) async fn ensure<K>(what: &'static str, api: &Api<K>, object: &K) -> Result<(), Call>
where
    K: Clone + Debug + DeserializeOwned + serde::Serialize,
{
    match call(what, api.create(&PostParams::default(), object)).await {
        Ok(_) | Err(Call::Api(409, _)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Deletes an object. With `uid`, deletes it only if it has this uid. `grace`: grace period of a pod in seconds.
pub(super) async fn delete<K>(
    what: &'static str,
    api: &Api<K>,
    name: &str,
    uid: Option<&str>,
    grace: Option<u32>,
) -> Result<(), Call>
where
    K: Clone + Debug + DeserializeOwned,
{
    let params = DeleteParams {
        grace_period_seconds: grace,
        preconditions: uid.map(|uid| Preconditions {
            uid: Some(uid.to_owned()),
            ..Preconditions::default()
        }),
        ..DeleteParams::background()
    };
    match call(what, api.delete(name, &params)).await {
        // A conflict means that the object has another uid, so the requested one is already gone.
        Ok(_) | Err(Call::Api(404 | 409, _)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns all objects of a kind with this label.
pub(super) async fn list<K>(
    what: &'static str,
    api: &Api<K>,
    label: &str,
    value: &str,
) -> Result<Vec<K>, Error>
where
    K: Clone + Debug + DeserializeOwned,
{
    let of = ListParams::default().labels(&format!("{label}={value}"));
    Ok(call(what, api.list(&of)).await?.items)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_server_is_reached_without_the_proxy_of_the_environment() {
        let left = |proxy: &str| {
            let mut config = Config::new("https://192.0.2.1".parse().expect("a URL"));
            config.proxy_url = Some(proxy.parse().expect("a URL"));
            let variable = |name: &str| (name == "https_proxy").then(|| "http://a:1".to_owned());
            without_proxy(config, variable).proxy_url
        };
        assert_eq!(left("http://a:1"), None);
        // From the kubeconfig.
        assert_eq!(
            left("http://b:1"),
            Some("http://b:1".parse().expect("a URL"))
        );
    }
}
