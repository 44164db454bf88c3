//! An MCP server that stores recipes: five tools on one SQLite file.
//!
//! It is part of the recipe vault (see this folder's README), and also works with any other client:
//!
//! ```text
//! toolwharf-example-recipes --file ~/recipes.db
//! ```
//!
//! The dice example explains how such a server is written. This one adds storage, and checks the data from a model before
//! it is stored. Deliberately absent: access control. The user who starts the server owns the file.

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
    vault::{Kept, PAGE_SIZE, Summary, Vault},
};

#[derive(Debug, Parser)]
#[command(about = "An MCP server that stores recipes in a SQLite file")]
struct Options {
    /// The file; created if it is missing
    #[arg(long, env = "RECIPES_FILE", default_value = "recipes.db")]
    file: PathBuf,
}

#[derive(Clone, Debug)]
struct RecipeServer {
    vault: Vault,
}

/// Arguments of `list_recipes`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Wanted {
    /// Only recipes that contain this text, in any part.
    text: String,
    /// Only recipes with this tag.
    tag: String,
    /// Only recipes with greater ids: `next` of the previous list.
    after: i64,
}

/// Result of `list_recipes`.
#[derive(Debug, Serialize, JsonSchema)]
struct Listed {
    recipes: Vec<Summary>,
    /// Pass it as `after` to get more; null if these are all.
    next: Option<i64>,
}

/// Arguments of `get_recipe` and `delete_recipe`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Named {
    /// The recipe's id, from `create_recipe` or `list_recipes`.
    id: i64,
}

/// Result of `delete_recipe`.
#[derive(Debug, Serialize, JsonSchema)]
struct Deleted {
    deleted: i64,
}

#[tool_router(server_handler)]
impl RecipeServer {
    /// Stores a new recipe and returns it with its id. Fails if a recipe with the same source_url is already stored.
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
        let full = recipes.len() >= PAGE_SIZE as usize;
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

    /// Changes a stored recipe and returns it. Omitted fields stay unchanged.
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

    /// Deletes a stored recipe permanently.
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

// One thread is enough, and starts faster than a pool.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let vault = Vault::open(&options.file).await?;
    let server = RecipeServer { vault };
    let service = match server.serve(rmcp::transport::io::stdio_pipes()).await {
        Ok(service) => service,
        // Some clients start a server only to check that it starts, and disconnect without a message.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    // Runs until the client closes standard input, which is how it stops a stdio server.
    service.waiting().await?;
    Ok(())
}
