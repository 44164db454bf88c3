//! A sample of the settings file with all defaults.

/// Every setting with its default and a description. The list of settings (`told`) is parsed from it. The text is
/// also in `docs/configuration.md`.
pub(crate) const SAMPLE: &str = r#"# Settings of Toolwharf. All are optional; the values here are the defaults.

# Address and port to listen on. Loopback, unless you want to serve other machines.
listen = "127.0.0.1:6280"

# Tool names if there are several servers: "prefix-on-conflict", "always-prefix",
# "last-wins" or "preserve" (two tools of the same name are then an error).
naming = "prefix-on-conflict"

# Maximum length of tool names in characters, from 32 to 128. With the prefix that most clients add,
# such as "mcp__toolwharf__", a name of the default length has 64, the limit of many models.
max_name_len = 48

# How servers are started: "parallel", "sequential" (the first failure stops the start) or
# "lazy" (each at its first use).
start = "parallel"

# Tools in the lists of clients: "all", "search" (three tools that find and call the others) or "auto"
# ("search" for long lists). A client can ask for another value.
tools = "all"

# Length of a list of tools, in tokens, above which `tools = "auto"` means "search".
search_above = 10_000

# Tools that lists contain in search mode, too, such as "github/create_issue".
listed_tools = []

# The file of a sentence model, with which searches find tools of a similar meaning. Without it, they compare words.
# search_model = "/usr/share/toolwharf/minilm.model"

# Searches also compare the words of earlier searches that led to a successful call. They are kept in memory, for each
# project separately.
search_past_calls = false

# Clients may run JavaScript that calls tools, with the tool run_code. Such code can call every tool that its caller
# could call.
code = false

# Length of a tool's result, in tokens, above which clients get a preview, and the tool read_result that reads the rest.
# 0: no bound.
max_result_tokens = 0

# Clients get JSON in the texts of results without `null` members and white space, and tables as CSV.
compact_results = false

# Origins of web pages that may send requests, in addition to loopback, such as
# "https://app.example.com".
allowed_origins = []

# Host names that clients may use in URLs of this gateway, in addition to loopback and `listen`, such as
# "tools.example.com". A name without a port allows every port.
allowed_hosts = []

# Where state is stored. Default: $XDG_DATA_HOME/toolwharf or ~/.local/share/toolwharf.
# data_dir = "/var/lib/toolwharf"

# The database. Default: a SQLite file in the data directory. If the URL contains a password, set
# the variable TOOLWHARF_DATABASE_URL instead.
# database_url = "postgres://toolwharf@db.example.com/toolwharf"

# Whether MCP needs a key on loopback too. On other addresses it always does.
require_key = false

# Whether one invalid entry in a server file makes the whole configuration invalid. Otherwise, only
# its server is blocked, and all others run.
require_valid_entries = false

# Whether an upgrade starts servers on the host itself before the old process has stopped them. Then their
# calls do not wait, but both run for a moment. Sandboxed servers always start afterwards.
upgrade_overlap = true

# What to do with a tool whose definition changes after it was first seen:
# "quarantine" (not offered until approved), "warn" or "off".
tool_pinning = "quarantine"

# Reverse proxies in front of this gateway, as addresses or networks such as "10.0.0.0/8". Without `public_url`,
# their headers `X-Forwarded-Proto`, `-Host` and `-Prefix` or `Forwarded` say how clients reach the gateway.
trusted_proxies = []

# The address at which clients and browsers reach this gateway, for example behind a proxy. It may have
# a path, such as "https://example.com/tools". Default: `listen`.
# public_url = "https://tools.example.com"

# Where issuers of servers find Toolwharf's client metadata document. Default: below an https `public_url`.
# client_metadata_url = "https://example.com/toolwharf.json"

# Issuers whose tokens are accepted: a company's own sign-in. With one, MCP always needs a key or a token.
# [auth.oidc.corp]
# issuer = "https://login.example.com/realms/corp"
# audiences = ["https://tools.example.com"]   # default: the endpoints of this gateway
# scopes = ["mcp:call"]       # a token needs all of them
# jwks_uri = "https://login.example.com/realms/corp/certs"   # default: from the issuer's metadata
# client_id = "toolwharf"     # lets people sign in with a browser
# client_secret = "${OIDC_CLIENT_SECRET}"
# introspection = true        # asks the issuer about tokens that are not JWTs
# access = [                  # who may do what; without a matching rule, nothing is allowed
#   { claim = "groups", values = ["ml"], role = "call", projects = ["ml"] },
#   { claim = "realm_access.roles", values = ["toolwharf-admin"], role = "admin" },
#   { role = "read", projects = ["demo"] },
# ]

# Where people sign in to get access tokens for variables: "GITHUB_TOKEN": "${login:github}" in the `env` of a server.
# [logins.github]
# issuer = "https://github.com/login/oauth"
# authorize_url = "https://github.com/login/oauth/authorize"   # if the issuer has no metadata
# token_url = "https://github.com/login/oauth/access_token"
# device_url = "https://github.com/login/device/code"
# client_id = "Ov23"
# client_secret = "${GITHUB_CLIENT_SECRET}"
# client_auth = "client_secret_post"   # or "client_secret_basic", "private_key_jwt", "none"; default: what the issuer supports
# private_key = "${GITHUB_CLIENT_KEY}"   # PEM, for "private_key_jwt"
# scopes = ["repo", "read:org"]
# login = "user"              # "user": one sign-in per caller; "shared": one for all callers
# pkce = "assume"             # for an issuer that supports PKCE but does not say so

[extensions]
# Extensions, with their settings, that Toolwharf declares to servers that all clients share.
"io.modelcontextprotocol/ui" = { mimeTypes = ["text/html;profile=mcp-app"] }

[tls]
# With both files, clients connect with https. The files are read again when they change.
# cert = "/etc/toolwharf/cert.pem"   # the certificate, followed by those of intermediate authorities
# key = "/etc/toolwharf/key.pem"     # its private key, which only Toolwharf's user should be able to read

[limits]
max_body_bytes = "16MiB"      # largest request body; larger ones get 413
max_bodies_bytes = "256MiB"   # request bodies of all connections together; more get 503
max_unread_bytes = "256MiB"   # data that clients have not read yet; above it, the slowest clients are disconnected
max_connections = 16384       # client connections at the same time; fewer if the limit on open files is lower
max_line_bytes = "20MiB"      # longest line or event from a server
max_depth = 128               # deepest JSON nesting in a message
max_sessions = 16384          # client sessions at the same time
max_subscriptions = 16384     # resources that clients are subscribed to at the same time
max_session_instances = 16    # instances of one server with sharing "session"
queue_len = 256               # calls that wait for one server
client_queue_len = 256        # messages in the queue of one slow client
session_idle = "30m"          # an unused client session ends after this
server_idle = "30m"           # a server that started on demand stops after being unused for this long
held_call_ttl = "5m"          # how long a call waits for the client's input
max_held_calls = 1024         # calls that wait for input at the same time
stop_grace = "10s"            # from SIGTERM to SIGKILL
drain = "30s"                 # how long calls in flight may take at shutdown; longer values count as 19 seconds

[defaults]
# For servers in mcp.json that Toolwharf starts. An entry can override them.
sandbox = false               # whether they run in a sandbox
packages = "newest"           # versions for npx and uvx outside a sandbox: "newest", or "pinned" (installed once, and updated with `toolwharf update`)
# For all servers that Toolwharf starts, also those of projects and registrations. The `env` of an entry overrides them.
# env = { SSL_CERT_FILE = "/etc/ssl/company.pem" }   # variables with their values, which may contain `${VAR}`
pass_env = []                 # variables passed on from the environment of `toolwharf serve`, such as "UV_INDEX_CORP_PASSWORD"

[breaker]
failures = 3                  # failed starts in a row, after which a project's own server is not started for a while
cooldown = "60s"              # time until it may be started again; an entry can override both

[audit]
enabled = true                # records tool calls before and after they are made
bodies = "digests"            # "digests" of arguments and results, or "full": their texts, without secrets
errors = true                 # stores the first KiB of error texts, without secrets, even with "digests"
retention_days = 90           # 0 keeps records indefinitely

[results]
# Results of which clients got a preview, in the database.
keep = "1h"                   # how long their callers can read them
max_bytes = "64MiB"           # of one caller in one project; a new result replaces its oldest ones
max_total_bytes = "1GiB"      # of all callers

[backup]
# Backups that the gateway makes by itself, without the master key: keep a copy of the key in another place.
# folder = "/var/backups/toolwharf"   # default: no scheduled backups
every = "24h"                 # time from one backup to the next
keep = 7                      # files to keep in the folder; older ones are removed
volumes = false               # true: with the volumes of hosted servers

[hosting]
# The providers that hosted servers may run on. Each server gets the strongest one that works here and can run it.
# "runc" is weaker than "gvisor", and is used only if it is in this list.
providers = ["gvisor", "firecracker", "e2b", "process"]
# docker_host = "unix:///var/run/docker.sock"
docker_network = "bridge"     # for servers with an open network
gvisor_runtime = "runsc"      # the runtime's name in Docker's configuration
firecracker_runtime = "kata-fc"
runc_runtime = "runc"
# e2b_api_key = "${E2B_API_KEY}"   # required for "e2b"; avoid plain text
e2b_url = "https://api.e2b.app"
# e2b_sandbox_url = "https://sandbox.example.com"   # if all sandboxes have one address
package_bytes = "2GiB"        # disk limit for installing one package, caches included
package_files = 200000        # file limit for installing one package
package_hosts = []            # hosts that installations may reach, in addition to the registries of npm and uv
mounts = []                   # folders of this host that servers of projects and registrations may mount, including their subfolders
# webhook = "https://alerts.example.com/toolwharf"   # receives health warnings

[kubernetes]
# The cluster of the provider "kubernetes", which must be in `providers`.
# kubeconfig = "/etc/toolwharf/kubeconfig"   # default: KUBECONFIG, ~/.kube/config, or the cluster that Toolwharf runs in
# context = "production"      # default: the kubeconfig's current context
# namespace = "mcp-servers"   # default: the context's namespace
runtime_class = "gvisor"      # the RuntimeClass of pods; "" for the cluster's default runtime
# storage_class = "fast"      # the StorageClass of volumes; default: the cluster's default
# probe_image = "busybox"     # image that inspects the kernel and resource use of each pod; without it the kernel is unknown
user = 65532                  # the user that servers run as; "image" for the user of the image, which may be root
# watch_namespace = "mcp-servers"   # reads `MCPServer` resources in this namespace; default: none

[swarm]
# For the provider "swarm", which must be in `providers`. `daemons` are the nodes' Docker daemons, at least one a manager's.
# daemons = ["unix:///var/run/docker.sock", "tcp://10.0.0.2:2376"]   # default: `docker_host`
# tls = "/etc/toolwharf/docker"   # folder with ca.pem, cert.pem and key.pem for daemons at tcp://
# constraints = ["node.labels.mcp == true"]   # placement constraints of Swarm
gvisor = true                 # servers run only on gVisor; "runsc" must be the nodes' `default-runtime`
network = "bridge"            # for servers with an open network
# volume_driver = "local"     # makes volumes available on any node; without it a server stays on the node of its volumes
# volume_options = ["type=nfs", "o=addr=10.0.0.9,rw", "device=:/volumes/{name}"]

# An endpoint for embeddings, instead of `search_model`. It gets the definitions of tools and the queries of searches.
# [embeddings]
# url = "https://api.openai.com/v1"   # the API of OpenAI, which local model servers support too; `/embeddings` is added
# model = "text-embedding-3-small"
# api_key = "${OPENAI_API_KEY}"       # default: none

# The agent behind `POST /api/v1/chat`. Without a model there is no agent.
# [agent]
# api = "anthropic"           # the model API; "openai" stands for chat completions, which local model servers support too
# model = "claude-sonnet-4-5"
# api_key = "${ANTHROPIC_API_KEY}"   # default: the secret or the variable of that name
# base_url = "https://api.anthropic.com"
# system = "You keep recipes."       # the system prompt; instead, system_file = "prompt.md" names a file in this folder
# max_tokens = 8192           # per response of the model
# max_turns = 20              # requests to the model per message
# max_chats = 32              # chats at the same time; more get 503
# start = "sequential"        # "sequential": a server of mcp.json that does not start fails the first chat; "parallel": chats continue without it
# native = ["display_recipe"] # Toolwharf's built-in tools
# [agent.prices."claude-sonnet-4-5"]   # per million tokens
# input = 3.0
# output = 15.0
# cache_read = 0.3
# cache_write = 3.75

# Registries for `toolwharf search` and `install`, in addition to the built-in one: the official API,
# or a file in ToolHive's format.
# [registries.official]
# url = "https://registry.modelcontextprotocol.io"

[console]
# MCP Apps are served from a separate origin, which serves nothing else. Default: a free port.
# apps_listen = "127.0.0.1:6281"
# The address of that origin for browsers on other machines. Without it, they do not show Apps.
# apps_url = "https://apps.example.com"

[replicas]
# For several gateways on one Postgres.
lease = "15s"                 # a replica that sends no heartbeat for this long counts as lost, and its servers run on other replicas
# listen = "10.0.0.5:6281"    # where other replicas reach this one; default: its address toward the database, and a free port
project_servers = "each"      # a project's server runs on each replica that needs it; "one": on one replica, which the others use

[log]
level = "info"                # or a filter such as "info,engine=debug"
format = "text"               # or "json"

# What callers of one project see. Without this section they see every server.
# [projects.my-project]
# servers = ["github", "time"]
# naming = "preserve"
# start = "parallel"          # for the project's chats, instead of the value in [agent]
# disabled_tools = ["github/delete_repository"]
# tools = "search"
# listed_tools = ["github/create_issue"]
# max_result_tokens = 5000
"#;
