//! Storage: one SQLite table, with a row for each recipe that contains its JSON.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use rmcp::schemars::JsonSchema;
use serde::Serialize;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::types::Json;

use crate::recipe::{Changes, Recipe};

/// Maximum number of recipes in one list.
pub(crate) const PAGE_SIZE: u32 = 50;

/// A stored recipe.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Kept {
    pub(crate) id: i64,
    #[serde(flatten)]
    pub(crate) recipe: Recipe,
    /// RFC 3339, in UTC.
    pub(crate) created_at: String,
    pub(crate) updated_at: String,
}

/// A recipe in a list.
#[derive(Clone, Debug, Serialize, JsonSchema, sqlx::FromRow)]
pub(crate) struct Summary {
    pub(crate) id: i64,
    pub(crate) title: String,
    pub(crate) source_url: Option<String>,
    pub(crate) updated_at: String,
}

#[derive(Clone, Debug)]
pub(crate) struct Vault {
    pool: SqlitePool,
}

#[derive(sqlx::FromRow)]
struct Row {
    id: i64,
    recipe: Json<Recipe>,
    created_at: String,
    updated_at: String,
}

type Result<T> = std::result::Result<T, String>;

impl Vault {
    /// Opens the file, and creates it if it is missing.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened, or is not a database of recipes.
    pub(crate) async fn open(file: &Path) -> anyhow::Result<Self> {
        let options = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(Duration::from_secs(5));
        let opened = async {
            let pool = SqlitePoolOptions::new()
                .max_connections(1)
                .connect_with(options)
                .await?;
            sqlx::query(
                "CREATE TABLE IF NOT EXISTS recipes (
                     id INTEGER PRIMARY KEY AUTOINCREMENT,
                     title TEXT NOT NULL,
                     source_url TEXT UNIQUE,
                     recipe TEXT NOT NULL CHECK (json_valid(recipe)),
                     created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ')),
                     updated_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ'))
                 ) STRICT",
            )
            .execute(&pool)
            .await?;
            Ok::<_, sqlx::Error>(pool)
        };
        let pool = opened.await;
        let pool =
            pool.with_context(|| format!("cannot open the recipe database {}", file.display()))?;
        Ok(Self { pool })
    }

    pub(crate) async fn create(&self, recipe: Recipe) -> Result<Kept> {
        let recipe = recipe.checked()?;
        let stored = sqlx::query_as::<_, Row>(
            "INSERT INTO recipes (title, source_url, recipe) VALUES ($1, $2, $3)
             RETURNING id, recipe, created_at, updated_at",
        )
        .bind(&recipe.title)
        .bind(&recipe.source_url)
        .bind(Json(&recipe))
        .fetch_one(&self.pool)
        .await;
        match stored {
            Ok(row) => Ok(row.into()),
            Err(error) => Err(self.refused(error, &recipe).await),
        }
    }

    pub(crate) async fn list(&self, text: &str, tag: &str, after: i64) -> Result<Vec<Summary>> {
        sqlx::query_as(
            "SELECT id, title, source_url, updated_at FROM recipes
             WHERE id > $1 AND ($2 = '' OR instr(lower(recipe), lower($2)) > 0)
               AND ($3 = '' OR EXISTS (SELECT 1 FROM json_each(recipe, '$.tags') WHERE value = lower($3)))
             ORDER BY id LIMIT $4",
        )
        .bind(after)
        .bind(text)
        .bind(tag)
        .bind(PAGE_SIZE)
        .fetch_all(&self.pool)
        .await
        .map_err(|error| broken(&error))
    }

    pub(crate) async fn get(&self, id: i64) -> Result<Kept> {
        let row = sqlx::query_as::<_, Row>(
            "SELECT id, recipe, created_at, updated_at FROM recipes WHERE id = $1",
        )
        .bind(id)
        .fetch_optional(&self.pool)
        .await
        .map_err(|error| broken(&error))?;
        row.map(Kept::from).ok_or_else(|| missing(id))
    }

    pub(crate) async fn update(&self, changes: Changes) -> Result<Kept> {
        let id = changes.id;
        let recipe = self.get(id).await?.recipe.changed(changes).checked()?;
        let stored = sqlx::query_as::<_, Row>(
            "UPDATE recipes SET title = $2, source_url = $3, recipe = $4,
                 updated_at = strftime('%Y-%m-%dT%H:%M:%SZ')
             WHERE id = $1 RETURNING id, recipe, created_at, updated_at",
        )
        .bind(id)
        .bind(&recipe.title)
        .bind(&recipe.source_url)
        .bind(Json(&recipe))
        .fetch_optional(&self.pool)
        .await;
        match stored {
            Ok(row) => row.map(Kept::from).ok_or_else(|| missing(id)),
            Err(error) => Err(self.refused(error, &recipe).await),
        }
    }

    pub(crate) async fn delete(&self, id: i64) -> Result<()> {
        let done = sqlx::query("DELETE FROM recipes WHERE id = $1")
            .bind(id)
            .execute(&self.pool)
            .await
            .map_err(|error| broken(&error))?;
        match done.rows_affected() {
            0 => Err(missing(id)),
            _ => Ok(()),
        }
    }

    /// The message for a recipe that was not stored.
    async fn refused(&self, error: sqlx::Error, recipe: &Recipe) -> String {
        let taken = error
            .as_database_error()
            .is_some_and(|error| error.is_unique_violation());
        let Some(url) = recipe.source_url.as_deref().filter(|_| taken) else {
            return broken(&error);
        };
        let other: sqlx::Result<Option<i64>> =
            sqlx::query_scalar("SELECT id FROM recipes WHERE source_url = $1")
                .bind(url)
                .fetch_optional(&self.pool)
                .await;
        match other {
            Ok(Some(id)) => format!(
                "nothing was stored: the recipe from {url} is already stored, with the id {id}; \
                 change it with `update_recipe`"
            ),
            _ => broken(&error),
        }
    }
}

impl From<Row> for Kept {
    fn from(row: Row) -> Self {
        Self {
            id: row.id,
            recipe: row.recipe.0,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

fn missing(id: i64) -> String {
    format!("there is no recipe with the id {id}; `list_recipes` lists all recipes")
}

fn broken(error: &sqlx::Error) -> String {
    eprintln!("recipe database: {error}");
    format!("cannot read or write the recipes: {error}")
}
