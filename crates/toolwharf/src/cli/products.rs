//! `product`: installs, lists and removes products of projects.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use api::{InstalledProduct, Product};
use http::header;
use hyper::Method;
use model::{ProjectId, ServerName};
use serde_json::Value;

use super::{Context, files, http::path, names, pages, print, shown, values};

/// Maximum size of a manifest, in bytes.
const MAX_MANIFEST_BYTES: u64 = 2 << 20;

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Install a product, or update an installed one.
    Install(InstallArgs),
    /// List the products of a project.
    #[command(alias = "list")]
    Ls(ListArgs),
    /// Remove a product and its servers.
    #[command(alias = "remove")]
    Rm(NameArgs),
}

#[derive(clap::Args)]
pub(super) struct InstallArgs {
    /// The manifest, as YAML or JSON. `-` is standard input.
    file: PathBuf,
    /// The project to install it in.
    #[arg(long, add = names::projects())]
    project: ProjectId,
}

#[derive(clap::Args)]
pub(super) struct ListArgs {
    /// The project of the products.
    #[arg(long, add = names::projects())]
    project: ProjectId,
}

#[derive(clap::Args)]
pub(super) struct NameArgs {
    #[arg(value_parser = values::name)]
    name: String,
    /// The project of the product.
    #[arg(long, add = names::projects())]
    project: ProjectId,
}

pub(super) async fn run(context: &Context, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Install(args) => install(context, args).await,
        Command::Ls(args) => list(context, args).await,
        Command::Rm(args) => remove(context, args).await,
    }
}

async fn install(context: &Context, args: InstallArgs) -> anyhow::Result<()> {
    let (file, text) = files::text_or_stdin(&args.file, "a manifest", MAX_MANIFEST_BYTES)?;
    let is_json = text.trim_start().starts_with('{');
    let (kind, manifest) = if is_json {
        let manifest = serde_json::from_str::<Value>(&text).map_err(anyhow::Error::from);
        ("application/json", manifest)
    } else {
        let manifest = serde_saphyr::from_str::<Value>(&text).map_err(anyhow::Error::from);
        ("application/yaml", manifest)
    };
    let manifest = manifest.with_context(|| format!("{file} is not a valid manifest"))?;
    let Some(name) = manifest["name"].as_str() else {
        bail!("{file} has no `name`; a manifest begins with `name: …`");
    };
    if let Err(why) = ServerName::parse(name) {
        bail!("a product cannot have the name `{name}` in {file}: {why}; choose another one");
    }
    let project = args.project.as_str();
    let api = context.gateway().await?;
    let of_product = path(&["projects", project, "products", name]);
    let headers = [(header::CONTENT_TYPE, kind)];
    let installed: InstalledProduct = api
        .ask(Method::PUT, &of_product, text.into(), &headers)
        .await?;
    let product = &installed.product;
    let (name, version) = (&product.name, &product.version);
    eprintln!(
        "`{name}` {version} is installed in project `{project}`: {} servers{}",
        product.servers.len(),
        match installed.removed.as_slice() {
            [] => String::new(),
            gone => format!("; removed {}", gone.join(", ")),
        }
    );
    context.print_json(&installed)
}

async fn list(context: &Context, args: ListArgs) -> anyhow::Result<()> {
    let api = context.gateway().await?;
    let project = args.project.as_str();
    let products = path(&["projects", project, "products"]);
    let listed = pages::all::<Product>(&api, &products, &()).await?;
    for product in listed.rows.iter().filter(|product| product.kept_back > 0) {
        eprintln!(
            "{} of product `{}` kept back: `toolwharf tools ls --project {project}` shows which",
            shown::tools(product.kept_back),
            product.name
        );
    }
    let none = format!(
        "there are no products; `toolwharf product install FILE --project {project}` installs one"
    );
    let cells = |product: &Product| {
        [
            product.name.clone(),
            product.version.clone(),
            product.servers.join(", "),
            print::short(&product.description, 80),
        ]
    };
    let head = ["NAME", "VERSION", "SERVERS", "DESCRIPTION"];
    listed.print(context, &none, head, cells)
}

async fn remove(context: &Context, args: NameArgs) -> anyhow::Result<()> {
    let api = context.gateway().await?;
    let of_product = path(&["projects", args.project.as_str(), "products", &args.name]);
    api.delete::<()>(&of_product).await?;
    eprintln!("removed `{}` from project `{}`", args.name, args.project);
    Ok(())
}
