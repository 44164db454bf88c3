//! Queries a gateway's database directly, not through the gateway.

use std::path::Path;

use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, PgConnection, SqliteConnection,
    sqlite::SqliteConnectOptions,
};

/// Returns the only column of a query, as text. Tables are named `kb.…`. The database is the Postgres at this URL, or a
/// file in the data directory.
pub(crate) async fn column(data: &Path, url: Option<&str>, query: &str) -> Vec<Option<String>> {
    if let Some(url) = url {
        let mut conn = PgConnection::connect(url).await.unwrap();
        let query = sqlx::query_scalar(AssertSqlSafe(query.to_owned()));
        let rows = query.fetch_all(&mut conn).await.unwrap();
        conn.close().await.unwrap();
        return rows;
    }
    let file = data.join("toolwharf.db");
    let options = SqliteConnectOptions::new().filename(file).read_only(true);
    let mut conn: SqliteConnection = options.connect().await.unwrap();
    let query = sqlx::query_scalar(AssertSqlSafe(query.replace("kb.", "main.")));
    let rows = query.fetch_all(&mut conn).await.unwrap();
    conn.close().await.unwrap();
    rows
}
