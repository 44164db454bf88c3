//! What the API server has to let Toolwharf do, and whether it does. `examples/kubernetes/rbac.yaml` says the same.

use futures_util::future::join_all;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;

use super::api::{Call, Cluster, call};
use crate::unit::Error;

/// Group, resource, subresource and verbs, all of them in the namespace of the servers.
const RIGHTS: [(&str, &str, &str, &[&str]); 9] = [
    (
        "",
        "pods",
        "",
        &["create", "delete", "get", "list", "watch"],
    ),
    ("", "pods", "attach", &["create", "get"]),
    ("", "pods", "exec", &["create", "get"]),
    ("", "pods", "portforward", &["create", "get"]),
    ("", "pods", "log", &["get"]),
    ("", "secrets", "", &["create", "delete", "get", "list"]),
    (
        "",
        "persistentvolumeclaims",
        "",
        &["create", "delete", "list"],
    ),
    ("", "events", "", &["list"]),
    ("networking.k8s.io", "networkpolicies", "", &["create"]),
];

/// Whether all rights are there.
///
/// # Errors
///
/// [`Error::Unavailable`] with those that are not. A cluster that does not tell has its say when they are used.
pub(super) async fn check(cluster: &Cluster) -> Result<(), Error> {
    let asked: Api<SelfSubjectAccessReview> = Api::all(cluster.client.clone());
    let all = RIGHTS.iter().flat_map(|(group, resource, part, verbs)| {
        verbs
            .iter()
            .map(move |verb| (*group, *resource, *part, *verb))
    });
    let answers = all.map(|(group, resource, part, verb)| {
        let (asked, namespace) = (&asked, &cluster.namespace);
        async move {
            let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
            let review = SelfSubjectAccessReview {
                spec: SelfSubjectAccessReviewSpec {
                    resource_attributes: Some(ResourceAttributes {
                        group: text(group),
                        namespace: text(namespace),
                        resource: text(resource),
                        subresource: text(part),
                        verb: text(verb),
                        ..ResourceAttributes::default()
                    }),
                    ..SelfSubjectAccessReviewSpec::default()
                },
                ..SelfSubjectAccessReview::default()
            };
            let create = PostParams::default();
            let answer = call("ask for a right", asked.create(&create, &review)).await;
            let slash = if part.is_empty() { "" } else { "/" };
            let right = format!("{verb} {resource}{slash}{part}");
            match answer {
                Ok(answer) => Ok(answer.status.is_some_and(|it| !it.allowed).then_some(right)),
                Err(Call::Api(403 | 404, _)) => Ok(None),
                Err(error) => Err(Error::from(error)),
            }
        }
    });
    let answers: Result<Vec<_>, _> = join_all(answers).await.into_iter().collect();
    let missing: Vec<String> = answers?.into_iter().flatten().collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::Unavailable(format!(
        "Toolwharf has no leave to {} in the namespace `{}`; `examples/kubernetes/rbac.yaml` has all that it needs",
        missing.join(", "),
        cluster.namespace
    )))
}
