//! The file with all its defaults.

/// Every setting with its default: for the documentation, and for whoever asks what can be set.
pub(crate) const SAMPLE: &str = r#"# Settings of Toolwharf. All are optional; what stands here is the default.

# Address and port of the one listener. Loopback unless you mean to serve others.
listen = "127.0.0.1:6280"

# How tools of several servers are named: "prefix-on-conflict", "always-prefix",
# "last-wins" or "preserve" (then two tools of one name are an error).
naming = "prefix-on-conflict"

# How servers are started: "parallel", "sequential" (the first failure fails the start) or
# "lazy" (each at its first use).
start = "parallel"

# Origins, besides those of loopback, whose web pages may call.
# Written as "https://app.example.com".
allowed_origins = []

# Names, besides loopback and `listen`, under which clients may call, such as
# "tools.example.com"; without a port every port.
allowed_hosts = []

# Where state is kept; by default $XDG_DATA_HOME/toolwharf or ~/.local/share/toolwharf.
# data_dir = "/var/lib/toolwharf"

# The database; by default a SQLite file in the data directory. A URL with a password is better
# given as the variable TOOLWHARF_DATABASE_URL.
# database_url = "postgres://toolwharf@db.example.com/toolwharf"

# Whether MCP needs a key on loopback, too. Elsewhere it always does.
require_key = false

# What happens to a tool whose definition its server changes after it was first seen:
# "quarantine" (not offered until approved), "warn" or "off".
tool_pinning = "quarantine"

# Where clients and browsers reach this gateway, behind a proxy for instance; by default where it listens.
# public_url = "https://tools.example.com"

# Where issuers of servers find Toolwharf's client metadata document; by default below an https `public_url`.
# client_metadata_url = "https://example.com/toolwharf.json"

# Issuers whose tokens are taken: people of a company's own sign-in. MCP then always needs a key or a token.
# [auth.oidc.corp]
# issuer = "https://login.example.com/realms/corp"
# audiences = ["https://tools.example.com"]   # by default the endpoints of this gateway
# scopes = ["mcp:call"]       # that a token needs, all of them
# jwks_uri = "https://login.example.com/realms/corp/certs"   # by default what its metadata says
# client_id = "toolwharf"     # with one, people can sign in at a browser
# client_secret = "${OIDC_CLIENT_SECRET}"
# introspection = true        # asks the issuer about tokens that are no JWT
# access = [                  # who may do what; nobody anything without a rule
#   { claim = "groups", values = ["ml"], role = "call", projects = ["ml"] },
#   { claim = "realm_access.roles", values = ["toolwharf-admin"], role = "admin" },
#   { role = "read", projects = ["demo"] },
# ]

# Where people sign in for the access tokens of variables: "GITHUB_TOKEN": "${login:github}" in the `env` of a server.
# [logins.github]
# issuer = "https://github.com/login/oauth"
# authorize_url = "https://github.com/login/oauth/authorize"   # where the issuer has no metadata
# token_url = "https://github.com/login/oauth/access_token"
# device_url = "https://github.com/login/device/code"
# client_id = "Ov23"
# client_secret = "${GITHUB_CLIENT_SECRET}"
# client_auth = "client_secret_post"   # or "client_secret_basic", "private_key_jwt", "none"; by default as the issuer wants it
# private_key = "${GITHUB_CLIENT_KEY}"   # PEM, for "private_key_jwt"
# scopes = ["repo", "read:org"]
# login = "user"              # each caller's own; or "shared", one for all
# pkce = "assume"             # where the issuer does not say that it knows PKCE and does

[extensions]
# Servers that all clients share are told that their client has these extensions, with these settings.
"io.modelcontextprotocol/ui" = { mimeTypes = ["text/html;profile=mcp-app"] }

[limits]
max_body_bytes = "16MiB"      # largest request body; more is answered with 413
max_bodies_bytes = "256MiB"   # request bodies of all connections; more is answered with 503
max_unread_bytes = "256MiB"   # what waits for clients to read it; then the slowest are cut off
max_connections = 16384       # client connections at a time; fewer if files are limited to fewer
max_line_bytes = "20MiB"      # longest line or event of a server
max_depth = 128               # deepest nesting of JSON in a message
max_sessions = 16384          # client sessions at a time
max_subscriptions = 16384     # resources that clients watch at a time
max_session_instances = 16    # instances of one server with sharing "session"
queue_len = 256               # calls that wait for one server
client_queue_len = 256        # messages that wait for one slow client
session_idle = "30m"          # an unused client session ends after this
server_idle = "30m"           # a server started at its first use is stopped when unused for this
held_call_ttl = "5m"          # how long a call waits for the client's input
max_held_calls = 1024         # calls that wait like that at a time
stop_grace = "10s"            # from the request to stop until the kill
drain = "30s"                 # how long calls in flight may finish at the end, 19 seconds at most

[defaults]
# Of servers of mcp.json that are launched; an entry may say otherwise.
sandbox = false               # true: in a sandbox
packages = "newest"           # of npx and uvx on the host itself; "pinned": installed once, and moved on by `update`

[breaker]
failures = 3                  # starts in a row that fail, after which a project's own server is left alone
cooldown = "60s"              # for so long; an entry may say otherwise

[audit]
enabled = true                # tool calls are recorded before and after they are made
bodies = "digests"            # of arguments and results, or "full" texts without secrets
retention_days = 90           # 0 keeps records for ever

[hosting]
# What hosted servers may run on; each gets the strongest that works and suits it. "runc" is
# weaker than "gvisor", and only used where it stands here.
providers = ["gvisor", "firecracker", "e2b", "process"]
# docker_host = "unix:///var/run/docker.sock"
docker_network = "bridge"     # of servers that may reach everything
gvisor_runtime = "runsc"      # as Docker knows it
firecracker_runtime = "kata-fc"
runc_runtime = "runc"
# e2b_api_key = "${E2B_API_KEY}"   # without one there is no "e2b"; better not in plain text
e2b_url = "https://api.e2b.app"
# e2b_sandbox_url = "https://sandbox.example.com"   # where one address serves all sandboxes
package_bytes = "2GiB"        # what the installation of one package may write, caches included
package_files = 200000        # and how many files
package_hosts = []            # hosts that installations reach beside the registries of npm and uv
mounts = []                   # paths of this host below which servers may mount something
# webhook = "https://alerts.example.com/toolwharf"   # health warnings are posted there

[kubernetes]
# The cluster of the provider "kubernetes", which has to stand in `providers`.
# kubeconfig = "/etc/toolwharf/kubeconfig"   # without one: KUBECONFIG, ~/.kube/config, or the cluster it runs in
# context = "production"      # without one: the kubeconfig's current context
# namespace = "mcp-servers"   # without one: the context's
runtime_class = "gvisor"      # the RuntimeClass of pods; "" for the cluster's default runtime
# storage_class = "fast"      # of volumes; without one: the cluster's default
# probe_image = "busybox"     # looks in each pod at its kernel and at what it uses; without one the kernel is not known
user = 65532                  # whom servers run as; "image" for whom their image says, which may be root
# watch_namespace = "mcp-servers"   # `MCPServer` resources of this namespace are servers here; without one none are

[swarm]
# The swarm of the provider "swarm", which has to stand in `providers`: daemons of its nodes, a manager's among them.
# daemons = ["unix:///var/run/docker.sock", "tcp://10.0.0.2:2376"]   # without them: that of `docker_host`
# tls = "/etc/toolwharf/docker"   # ca.pem, cert.pem and key.pem for daemons at tcp://
# constraints = ["node.labels.mcp == true"]   # what Swarm has to find of a node
gvisor = true                 # servers run on gVisor's kernel or not at all; "runsc" is the nodes' `default-runtime`
network = "bridge"            # of servers that may reach everything
# volume_driver = "local"     # brings volumes to any node; without one a server stays where its volumes are
# volume_options = ["type=nfs", "o=addr=10.0.0.9,rw", "device=:/volumes/{name}"]

# The agent that `POST /api/v1/chat` talks to; there is none without a model.
# [agent]
# api = "anthropic"           # or "openai": chat completions, which local model servers speak too
# model = "claude-sonnet-4-5"
# api_key = "${ANTHROPIC_API_KEY}"   # without it: the secret or the variable of that name
# base_url = "https://api.anthropic.com"
# system = "You keep recipes."       # or system_file = "prompt.md", beside this file
# max_tokens = 8192           # of one answer
# max_turns = 20              # requests to the model for one message
# max_chats = 32              # at a time; one more is answered with 503
# start = "sequential"        # a server that does not start fails the chat; with "parallel" it is left out
# native = ["display_recipe"] # tools of Toolwharf's own
# [agent.prices."claude-sonnet-4-5"]   # of a million tokens
# input = 3.0
# output = 15.0
# cache_read = 0.3
# cache_write = 3.75

# Registries of servers that `toolwharf search` and `install` ask, besides the built-in one: the official API,
# or a file as ToolHive has it.
# [registries.official]
# url = "https://registry.modelcontextprotocol.io"

[console]
# MCP Apps are drawn on an origin of their own, which serves nothing else: by default on the port after that of `listen`, or any free one.
# apps_listen = "127.0.0.1:6281"
# Where browsers reach that, if they are on other machines; without it no Apps are drawn for them.
# apps_url = "https://apps.example.com"

[replicas]
# Of several gateways on one Postgres.
lease = "15s"                 # a replica that is silent for so long is lost, and its servers run elsewhere
# listen = "10.0.0.5:6281"    # where this replica is reached by the others; by default its address on the way to the database, and a free port
project_servers = "each"      # a project's server runs on each replica that is asked for it; "one": on one, and the others use it there

[log]
level = "info"                # or a filter such as "info,engine=debug"
format = "text"               # or "json"

# What callers of one project see. Without a section they see every server.
# [projects.my-project]
# servers = ["github", "time"]
# naming = "preserve"
# disabled_tools = ["github/delete_repository"]
"#;
