//! Notifications of a change with many servers. The cost of a change is tested in `engine::views::keeper`.

use std::time::Duration;

use crate::support::{ERAS, World, quiet, stdio, until};

/// One changed tool among those of many servers is one notification for each client.
#[tokio::test(start_paused = true)]
async fn a_changed_tool_is_one_notification() {
    let world = World::new();
    let names: Vec<String> = (0..60).map(|n| format!("s{n}")).collect();
    for name in &names {
        let tools = ["shared".to_owned(), format!("own_{name}")];
        let scripted = world.scripted(name);
        scripted.script(|script| script.tools = tools.to_vec());
    }
    let specs: Vec<_> = names.iter().map(|name| stdio(name)).collect();
    world.configure(&specs);
    let all_up = || {
        let fleet = world.gateway.fleet();
        fleet.all().all(|server| server.was_up())
    };
    until("all servers are up", all_up).await;
    quiet().await;
    let one = world.scripted("s7");
    for era in ERAS {
        let client = world.client(era).await;
        let _listening = client.listen(&[]).await;
        assert_eq!(client.list("tools").await.len(), 120);
        // Another server has that name, so it gets a prefix from now on.
        one.script(|script| script.tools.push("own_s3".to_owned()));
        one.changed("tools");
        tokio::time::sleep(Duration::from_secs(5)).await;
        let told = client.notifications("notifications/tools/list_changed");
        assert_eq!(told.len(), 1, "{era:?}");
        let listed = client.list("tools").await;
        let listed: Vec<_> = listed
            .iter()
            .filter_map(|tool| tool["name"].as_str())
            .collect();
        assert!(listed.contains(&"s3__own_s3") && listed.contains(&"s7__own_s3"));
        assert_eq!(listed.len(), 121);
        one.script(|script| script.tools.truncate(2));
        one.changed("tools");
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
}
