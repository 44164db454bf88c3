"""Renders the Helm chart in several ways, lints it, and validates the output and kustomize's against the newest Kubernetes schemas.

Usage: render.py CHART FILE… Prints JSON. FILEs are manifests, which are included unchanged.
"""
import json
import sys

import kubernetes_validate
import yaml
from helm_python import chart

VALUES = {
    "default": {},
    "alone": {"provider": {"enabled": False}, "resources": {"enabled": False}},
    # For the test cluster, where pods cannot reach the API server.
    "started": {
        "image": {"repository": "toolwharf-test/toolwharf", "tag": "1"},
        "provider": {"enabled": False},
        "resources": {"enabled": False},
        "persistence": {"storageClass": "chart"},
    },
    "replicas": {"replicas": 3, "database": {"secret": "toolwharf"}, "servers": {"namespace": "servers"}},
    "proxied": {
        "pod": {
            "env": [
                {"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"},
                {"name": "SSL_CERT_FILE", "value": "/etc/ca/ca.pem"},
            ],
            "volumes": [{"name": "ca", "configMap": {"name": "ca"}}],
            "volumeMounts": [{"name": "ca", "mountPath": "/etc/ca", "readOnly": True}],
        },
    },
}


def documents(text):
    return [one for one in yaml.safe_load_all(text) if one]


path, *files = sys.argv[1:]
rendered = {}
loaded = chart.Chart.load(path)
for name, values in VALUES.items():
    made = loaded.render(values, name="toolwharf", namespace="gateway")
    rendered[name] = [one for file, text in made.items() if not file.endswith(".txt") for one in documents(text)]
try:
    loaded.render({"replicas": 2}, name="toolwharf", namespace="gateway")
    refused = None
except Exception as error:  # The module's own kinds of errors say no more.
    refused = str(error)
given = {file: documents(open(file).read()) for file in files}
version = kubernetes_validate.latest_version()
for one in [one for all in (*rendered.values(), *given.values()) for one in all]:
    if not one["apiVersion"].startswith("kustomize.config.k8s.io/"):
        kubernetes_validate.validate(one, version, strict=True)
json.dump({"rendered": rendered, "refused": refused, "given": given, "lint": chart.lint(path, strict=True)}, sys.stdout)
