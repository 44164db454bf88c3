//! An MCP server that keeps recipes: five tools over one SQLite file.
//!
//! It is the middle part of the recipe application (see this folder's README), and useful with any other client, too:
//!
//! ```text
//! toolwharf-example-recipes --file ~/recipes.db
//! ```
//!
//! For how such a server is written, see the dice example beside this one; what is more here is what lasts, and that what
//! a model sends is checked before it does. Deliberately absent: who may do what. Whoever starts it owns the file.

mod recipe;
mod vault;

use std::path::PathBuf;

use clap::Parser;
use rmcp::{
    Json, ServiceExt, handler::server::wrapper::Parameters, schemars::JsonSchema,
    service::ServerInitializeError, tool, tool_router,
};
use serde::{Deserialize, Serialize};

use crate::{
    recipe::{Changes, Recipe},
    vault::{Kept, PAGE, Summary, Vault},
};

#[derive(Debug, Parser)]
#[command(about = "An MCP server that keeps recipes in a SQLite file")]
struct Options {
    /// The file, which is made if it is missing
    #[arg(long, env = "RECIPES_FILE", default_value = "recipes.db")]
    file: PathBuf,
}

#[derive(Clone, Debug)]
struct RecipeServer {
    vault: Vault,
}

/// What `list_recipes` takes.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Wanted {
    /// Only recipes that contain this text, in any part.
    text: String,
    /// Only recipes with this tag.
    tag: String,
    /// Only recipes with greater ids: `next` of the list before.
    after: i64,
}

/// What `list_recipes` gives.
#[derive(Debug, Serialize, JsonSchema)]
struct Listed {
    recipes: Vec<Summary>,
    /// Give it as `after` for more; null if these are all.
    next: Option<i64>,
}

/// What `get_recipe` and `delete_recipe` take.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Named {
    /// The recipe's id, from `create_recipe` or `list_recipes`.
    id: i64,
}

/// What `delete_recipe` gives.
#[derive(Debug, Serialize, JsonSchema)]
struct Deleted {
    deleted: i64,
}

#[tool_router(server_handler)]
impl RecipeServer {
    /// Stores a new recipe and returns it with its id. Fails if there is one from the same source_url already.
    #[tool(annotations(
        title = "Store a recipe",
        destructive_hint = false,
        open_world_hint = false
    ))]
    async fn create_recipe(
        &self,
        Parameters(recipe): Parameters<Recipe>,
    ) -> Result<Json<Kept>, String> {
        self.vault.create(recipe).await.map(Json)
    }

    /// Lists stored recipes, oldest first and 50 at a time: ids, titles and sources.
    #[tool(annotations(title = "List recipes", read_only_hint = true, open_world_hint = false))]
    async fn list_recipes(
        &self,
        Parameters(wanted): Parameters<Wanted>,
    ) -> Result<Json<Listed>, String> {
        let Wanted { text, tag, after } = wanted;
        let recipes = self.vault.list(text.trim(), tag.trim(), after).await?;
        let full = recipes.len() >= PAGE as usize;
        let next = recipes.last().filter(|_| full).map(|last| last.id);
        Ok(Json(Listed { recipes, next }))
    }

    /// Returns a stored recipe with all its ingredients and steps.
    #[tool(annotations(
        title = "Read a recipe",
        read_only_hint = true,
        open_world_hint = false
    ))]
    async fn get_recipe(
        &self,
        Parameters(Named { id }): Parameters<Named>,
    ) -> Result<Json<Kept>, String> {
        self.vault.get(id).await.map(Json)
    }

    /// Changes a stored recipe and returns it. What is not named stays as it is.
    #[tool(annotations(
        title = "Change a recipe",
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn update_recipe(
        &self,
        Parameters(changes): Parameters<Changes>,
    ) -> Result<Json<Kept>, String> {
        self.vault.update(changes).await.map(Json)
    }

    /// Deletes a stored recipe for good.
    #[tool(annotations(
        title = "Delete a recipe",
        destructive_hint = true,
        open_world_hint = false
    ))]
    async fn delete_recipe(
        &self,
        Parameters(Named { id }): Parameters<Named>,
    ) -> Result<Json<Deleted>, String> {
        self.vault.delete(id).await?;
        Ok(Json(Deleted { deleted: id }))
    }
}

// One thread is plenty, and it starts faster than a pool.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let vault = Vault::open(&options.file).await?;
    let server = RecipeServer { vault };
    let service = match server.serve(rmcp::transport::io::stdio_pipes()).await {
        Ok(service) => service,
        // A client may go before it has said anything: some start a server only to see if it can.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    // Runs until standard input is closed: that is how a client stops a stdio server.
    service.waiting().await?;
    Ok(())
}
