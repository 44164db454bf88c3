//! Clients are notified of each list that differs from the one that they have.

use mcp::Era;
use model::Settings;

use super::*;
use crate::views::keeper::{
    Keeper,
    tests::{fleet, identity, list, random::Numbers, server},
};

const TOOLS: [&str; 2] = ["x", "y"];

/// The lists that a client got, and whether it was notified since.
type Held = [Option<(String, bool)>; 4];

fn current(view: &View, kind: ListKind) -> String {
    String::from_utf8_lossy(view.list(kind, Era::Legacy)).into_owned()
}

/// Changes and list requests in any order. Once everything is announced, clients with an outdated list were notified.
#[test]
fn no_client_keeps_an_outdated_list() {
    let scope = Scope::default();
    for seed in 0..60 {
        let mut numbers = Numbers(seed);
        let servers = [server("a"), server("b")];
        servers.iter().for_each(|server| server.settle());
        let fleet = fleet(Settings::default(), &servers);
        let mut keeper = Keeper::new(identity());
        let announcer = Announcer::default();
        let mut clients: [Held; 3] = Default::default();
        for round in 0..60 {
            let now = keeper.view(&fleet, &scope).expect("a view");
            match numbers.below(4) {
                0 => {
                    let kind = ListKind::ALL[numbers.below(2)];
                    let client = numbers.below(clients.len());
                    clients[client][kind as usize] = Some((current(&now, kind), false));
                }
                1 | 2 => {
                    let server = &servers[numbers.below(2)];
                    let kind = ListKind::ALL[numbers.below(2)];
                    let items = list(kind, &numbers.some(&TOOLS), "first");
                    server.change(|catalog| catalog.set(kind, items));
                    keeper.refresh(&fleet, server);
                    announcer.note(&scope, Some(now), &[kind]);
                }
                _ => {
                    let told = Mutex::new(Vec::new());
                    let tell = |_: &Scope, kinds: &[ListKind]| told.lock().extend(kinds.to_vec());
                    assert!(announcer.announce(|_| Some(now.clone()), tell));
                    // The view itself must not count as known because of this comparison.
                    let anew = Keeper::new(identity()).view(&fleet, &scope);
                    let anew = anew.expect("a view");
                    for kind in ListKind::ALL {
                        let held = || {
                            clients
                                .iter()
                                .filter_map(|held| held[kind as usize].as_ref())
                        };
                        let at = format!("seed {seed}, round {round}, {kind:?}");
                        let is_current = |held: &(String, bool)| held.0 == current(&anew, kind);
                        let is_told = told.lock().contains(&kind);
                        assert!(
                            is_told || held().all(|held| held.1 || is_current(held)),
                            "{at}"
                        );
                        let times = told.lock().iter().filter(|one| **one == kind).count();
                        assert!(times <= 1, "{at}");
                    }
                    for client in &mut clients {
                        for kind in told.lock().iter() {
                            if let Some(held) = &mut client[*kind as usize] {
                                held.1 = true;
                            }
                        }
                    }
                }
            }
        }
    }
}
