//! A complete MCP server in one file: it rolls dice and flips a coin.
//!
//! An MCP server offers *tools* to whoever starts it. A client starts this program, writes
//! JSON-RPC messages to its standard input, one a line, and reads the answers from its standard
//! output. That is the whole "stdio transport": no port, no address, no configuration, and the
//! server ends when its standard input does. Try it by hand (`tr` joins the lines into one):
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
//! The `rmcp` crate speaks the protocol, in both of its eras: the older one, where a client says
//! `initialize` first, and the newer one used above, where each request stands alone. What is
//! left for a server to write is below:
//!
//! 1. types for what each tool takes and gives ([`Roll`], [`Rolled`]): their JSON Schemas, which
//!    tell a model how to call the tool, are derived, and the field comments become part of them;
//! 2. one function for each tool, in a `#[tool_router]` block: its comment is the description that
//!    a model reads when it chooses a tool, so it says when to use the tool and what comes back;
//! 3. a `main` that connects the server to its standard streams.
//!
//! Two rules that every stdio server keeps: nothing but protocol messages goes to standard output
//! (a stray `println!` breaks the conversation; use `eprintln!`), and arguments come from a
//! language model, so they are checked, and a wrong one is answered with how to do it right.
//!
//! There is no state here, and nothing to configure.

mod dice;

use rand::RngExt;
use rmcp::{
    Json, ServiceExt, handler::server::wrapper::Parameters, schemars::JsonSchema,
    service::ServerInitializeError, tool, tool_router,
};
use serde::{Deserialize, Serialize};

use crate::dice::Dice;

/// The server. Rolls are independent of each other, so it holds nothing.
#[derive(Clone, Debug)]
struct DiceServer;

/// What `roll` takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Roll {
    /// Dice notation: how many dice, `d`, how many sides, and optionally a bonus to add.
    /// For example `2d6`, `d20` or `4d8+3`. At most 100 dice of at most 1000 sides.
    dice: String,
}

/// What `roll` gives.
#[derive(Debug, Serialize, JsonSchema)]
struct Rolled {
    /// The notation that was rolled, in its shortest form.
    dice: String,
    /// What each die shows, in the order they fell.
    rolls: Vec<u32>,
    /// The sum of all dice, bonus included.
    total: i64,
}

/// What `flip` gives.
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

// `server_handler` also writes the `ServerHandler` implementation: enough for a server that has
// tools only.
#[tool_router(server_handler)]
impl DiceServer {
    /// Rolls dice given in dice notation, such as 2d6 or d20+4, and returns each die and the total.
    //
    // `Err` becomes a tool result with `isError`: the model sees the text and can try again. (A
    // JSON-RPC error would be for a request that makes no sense at all.)
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

// One thread is plenty, and it starts faster than a pool.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let service = match DiceServer.serve(rmcp::transport::io::stdio_pipes()).await {
        Ok(service) => service,
        // A client may go before it has said anything: some start a server only to see if it can.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    // Runs until standard input is closed: that is how a client stops a stdio server.
    service.waiting().await?;
    Ok(())
}
