//! The permissions that Toolwharf needs, and a check for them. Keep in sync with `examples/kubernetes/rbac.yaml`.

use futures_util::future::join_all;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;

use super::api::{Call, Cluster, call};
use runtime::unit::Error;

/// Group, resource, subresource and verbs, all in the servers' namespace.
const PERMISSIONS: [(&str, &str, &str, &[&str]); 9] = [
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

/// Checks that all permissions are granted.
///
/// # Errors
///
/// [`Error::Unavailable`] with the missing permissions. If the cluster does not answer the check, a missing permission
/// causes an error later, when it is used.
pub(super) async fn check(cluster: &Cluster) -> Result<(), Error> {
    let asked: Api<SelfSubjectAccessReview> = Api::all(cluster.client.clone());
    let all = PERMISSIONS
        .iter()
        .flat_map(|(group, resource, part, verbs)| {
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
            let answer = call("check a permission", asked.create(&create, &review)).await;
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
        "Toolwharf is not permitted to {} in the namespace `{}`; `examples/kubernetes/rbac.yaml` grants all permissions that it needs",
        missing.join(", "),
        cluster.namespace
    )))
}
