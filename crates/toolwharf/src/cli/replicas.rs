//! `replicas`: lists the gateways that share a Postgres database.

use api::{Replica, Replicas};

use super::{Context, Output, http::path, print};

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// List the gateways that share the database, with the number of their leases.
    #[command(alias = "list")]
    Ls,
}

pub(super) async fn run(context: &Context, command: Command) -> anyhow::Result<()> {
    let Command::Ls = command;
    let api = context.gateway().await?;
    let listed: Replicas = api.get(&path(&["replicas"])).await?;
    if context.output == Output::Json {
        return print::json(&listed.replicas);
    }
    if listed.replicas.is_empty() {
        eprintln!("the database is SQLite, which allows only one gateway");
    }
    let cells = |replica: &Replica| {
        let own = if replica.is_self { " (this)" } else { "" };
        [
            format!("{}{own}", replica.id),
            replica.name.clone(),
            replica.version.clone(),
            replica.address.clone().unwrap_or_default(),
            print::time(replica.started_at),
            print::time(replica.seen_at),
            replica.leases.len().to_string(),
        ]
    };
    let head = [
        "ID", "HOST", "VERSION", "ADDRESS", "STARTED", "SEEN", "LEASES",
    ];
    print::data(&print::table(head, listed.replicas.iter().map(cells)))
}
