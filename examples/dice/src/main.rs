//! A complete MCP server in one file: it rolls dice and flips a coin.
//!
//! An MCP server offers *tools* to a client. The client starts this program, writes JSON-RPC
//! messages to its standard input, one per line, and reads the responses from its standard output.
//! This is the "stdio transport": it needs no port, address or configuration. The server exits when
//! its standard input is closed. Try it by hand (`tr` joins the lines into one):
//!
//! ```text
//! $ cargo build -p dice
//! $ echo '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"roll",
//!   "arguments":{"dice":"2d6"},"_meta":{
//!     "io.modelcontextprotocol/protocolVersion":"2026-07-28",
//!     "io.modelcontextprotocol/clientInfo":{"name":"me","version":"1"},
//!     "io.modelcontextprotocol/clientCapabilities":{}}}}' \
//!   | (tr -d '\n'; echo) | target/debug/toolwharf-example-dice
//! ```
//!
//! The `rmcp` crate implements the protocol in both of its eras: the older one, where a client
//! sends `initialize` first, and the newer one used above, where each request stands alone. The
//! server itself consists of:
//!
//! 1. types for the input and output of each tool ([`Roll`], [`Rolled`]). Their JSON Schemas, which
//!    tell a model how to call the tool, are derived, and include the field comments.
//! 2. one function per tool, in a `#[tool_router]` block. Its comment is the description that a
//!    model reads when it chooses a tool, so it says what the tool does and what it returns.
//! 3. a `main` that connects the server to its standard streams.
//!
//! Every stdio server follows two rules:
//!
//! - Only protocol messages go to standard output. A stray `println!` breaks the connection; use
//!   `eprintln!`.
//! - Arguments come from a language model, so they are checked, and an error says what to write
//!   instead.
//!
//! The server has no state and no configuration.

mod dice;

use rand::RngExt;
use rmcp::{
    Json, ServiceExt, handler::server::wrapper::Parameters, schemars::JsonSchema,
    service::ServerInitializeError, tool, tool_router,
};
use serde::{Deserialize, Serialize};

use crate::dice::Dice;

/// The server. Rolls are independent of each other, so it has no state.
#[derive(Clone, Debug)]
struct DiceServer;

/// Arguments of `roll`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Roll {
    /// Dice notation: the number of dice, `d`, the number of sides, and optionally a bonus to add.
    /// For example `2d6`, `d20` or `4d8+3`. At most 100 dice of at most 1000 sides.
    dice: String,
}

/// Result of `roll`.
#[derive(Debug, Serialize, JsonSchema)]
struct Rolled {
    /// The notation that was rolled, in its shortest form.
    dice: String,
    /// The value of each die, in the order of the rolls.
    rolls: Vec<u32>,
    /// The sum of all dice, bonus included.
    total: i64,
}

/// Result of `flip`.
#[derive(Debug, Serialize, JsonSchema)]
struct Flipped {
    side: Side,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Side {
    Heads,
    Tails,
}

// `server_handler` also generates the `ServerHandler` implementation, which is enough for a server
// that has only tools.
#[tool_router(server_handler)]
impl DiceServer {
    /// Rolls dice given in dice notation, such as 2d6 or d20+4, and returns each die and the total.
    //
    // `Err` becomes a tool result with `isError`, so that the model sees the text and can try again.
    // (A JSON-RPC error is for an invalid request.)
    #[tool(annotations(title = "Roll dice", read_only_hint = true, open_world_hint = false))]
    fn roll(&self, Parameters(Roll { dice }): Parameters<Roll>) -> Result<Json<Rolled>, String> {
        let dice: Dice = dice
            .parse()
            .map_err(|error: dice::Error| error.to_string())?;
        let mut rng = rand::rng();
        let rolls: Vec<u32> = (0..dice.count)
            .map(|_| rng.random_range(1..=dice.sides))
            .collect();
        let total = rolls.iter().copied().map(i64::from).sum::<i64>() + i64::from(dice.bonus);
        Ok(Json(Rolled {
            dice: dice.to_string(),
            rolls,
            total,
        }))
    }

    /// Flips a fair coin and returns heads or tails.
    #[tool(annotations(title = "Flip a coin", read_only_hint = true, open_world_hint = false))]
    fn flip(&self) -> Json<Flipped> {
        let side = if rand::random() {
            Side::Heads
        } else {
            Side::Tails
        };
        Json(Flipped { side })
    }
}

// One thread is enough, and starts faster than a pool.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let service = match DiceServer.serve(rmcp::transport::io::stdio_pipes()).await {
        Ok(service) => service,
        // Some clients start a server only to check that it starts, and disconnect without a message.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    // Runs until the client closes standard input, which is how it stops a stdio server.
    service.waiting().await?;
    Ok(())
}
