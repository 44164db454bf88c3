#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use model::{ProjectId, ServerName};
use serde_json::json;
use store::*;

#[tokio::test]
async fn sqlite() {
    let dir = tempfile::tempdir().unwrap();
    let loc = Location::Sqlite(dir.path().join("wharf.db"));
    let s = Store::open(&loc).await.unwrap();
    run(&s).await;
    s.close().await;
    drop(s);
    let s = Store::open(&loc).await.unwrap();
    assert_eq!(s.project_list(&Page::default()).await.unwrap().len(), 1);
}

async fn run(s: &Store) {
    let p = ProjectId::parse("p").unwrap();
    let put = s.project_put(&NewProject::new(p.clone())).await.unwrap();
    assert!(put.created);
    assert!(
        !s.project_put(&NewProject::new(p.clone()))
            .await
            .unwrap()
            .created
    );
    s.project_ensure(std::slice::from_ref(&p)).await.unwrap();
    let name = ServerName::parse("time").unwrap();
    let ns = NewServer {
        name: name.clone(),
        description: "d".into(),
        transport: TransportKind::Stdio,
        config: json!({"command":"x"}),
        enabled: true,
    };
    assert!(s.server_put(&p, &ns).await.unwrap().created);
    assert_eq!(
        s.server_get(&p, &name).await.unwrap().config,
        json!({"command":"x"})
    );
    s.server_set_enabled(&p, &name, false).await.unwrap();
    let r = s
        .product_install(&p, "prod", "1", &json!({}), std::slice::from_ref(&ns))
        .await;
    assert!(matches!(r, Err(Error::Conflict { .. })), "{r:?}");
    s.server_delete(&p, &name).await.unwrap();
    s.product_install(&p, "prod", "1", &json!({}), std::slice::from_ref(&ns))
        .await
        .unwrap();
    assert!(matches!(
        s.server_delete(&p, &name).await,
        Err(Error::Conflict { .. })
    ));
    let i = s
        .product_install(&p, "prod", "2", &json!({}), &[])
        .await
        .unwrap();
    assert_eq!(i.removed, std::slice::from_ref(&name));
    let sec = SealedSecret {
        name: "K".into(),
        version: 1,
        nonce: vec![1],
        sealed: vec![2],
    };
    s.secret_put(&p, &sec).await.unwrap();
    assert!(matches!(
        s.secret_put(&p, &sec).await,
        Err(Error::Conflict { .. })
    ));
    s.secret_put(
        &p,
        &SealedSecret {
            version: 2,
            ..sec.clone()
        },
    )
    .await
    .unwrap();
    assert_eq!(s.secret_all(&p).await.unwrap()[0].version, 2);
    s.master_set_if_none("m1", b"c").await.unwrap();
    s.project_data_key_set_if_none(&p, "m1", b"k")
        .await
        .unwrap();
    s.master_rotate("m1", "m2", b"c2", &[(p.clone(), b"k2".to_vec())])
        .await
        .unwrap();
    assert_eq!(s.project_data_key(&p).await.unwrap().unwrap(), b"k2");
    let seen = |d: &str| Seen {
        tool: "t".into(),
        digest: d.into(),
        definition: d.into(),
    };
    s.pins_seen(None, &name, &[seen("a")]).await.unwrap();
    let pins = s.pins_seen(None, &name, &[seen("b")]).await.unwrap();
    assert_eq!(pins[0].pending_digest.as_deref(), Some("b"));
    s.pin_approve(None, &name, "t", "b").await.unwrap();
    s.snapshot_put(
        None,
        NewSnapshot {
            server: &name,
            config_digest: "x",
            catalog: "{}",
        },
    )
    .await
    .unwrap();
    assert_eq!(s.snapshot_list_all(None, 10).await.unwrap().len(), 1);
    s.tool_setting_put(
        &p,
        &name,
        "t",
        &ToolSetting {
            enabled: Some(false),
            ..Default::default()
        },
    )
    .await
    .unwrap();
    assert_eq!(
        s.tool_setting_list(&p).await.unwrap()[0].enabled,
        Some(false)
    );
    let k = s
        .key_put(NewKey {
            project: None,
            name: "a",
            role: Role::Admin,
            hash: "h",
            hint: "x",
            expires_at: None,
        })
        .await
        .unwrap();
    assert!(matches!(
        s.key_revoke(None, &k.id).await,
        Err(Error::Conflict { .. })
    ));
    s.keys_touch(&[(k.id.clone(), now())]).await.unwrap();
    assert!(
        s.key_by_hash("h")
            .await
            .unwrap()
            .unwrap()
            .last_used_at
            .is_some()
    );
    s.event_add(NewEvent {
        project: None,
        server: "s",
        kind: "start",
        detail: &json!({}),
    })
    .await
    .unwrap();
    assert_eq!(
        s.event_list(None, Some("s"), &Page::first(5))
            .await
            .unwrap()
            .len(),
        1
    );
    let run = s
        .run_put(NewRun {
            project: Some(&p),
            agent: "a",
            model: "m",
        })
        .await
        .unwrap();
    s.run_finish(
        Some(&p),
        &run.id,
        &RunEnd {
            status: "ok".into(),
            ..Default::default()
        },
    )
    .await
    .unwrap();
    let id = new_id();
    let w = vec![
        CallWrite::Outcome(CallEnd {
            id: id.clone(),
            status: CallStatus::Ok,
            error: None,
            result_digest: Some("r".into()),
            result: None,
            finished_at: now(),
            duration_us: 5,
        }),
        CallWrite::Intent(NewCall {
            id: id.clone(),
            run_id: None,
            project: Some(p.clone()),
            caller: "c".into(),
            server: "s".into(),
            tool: "t".into(),
            arguments_digest: "d".into(),
            arguments: None,
            started_at: now(),
        }),
    ];
    s.calls_write(&w).await.unwrap();
    assert_eq!(
        s.call_get(Some(&p), &id).await.unwrap().call.status,
        CallStatus::Ok
    );
    assert_eq!(
        s.calls_list(
            &CallFilter {
                project: Some(p.clone()),
                tool: Some("t".into()),
                ..Default::default()
            },
            &Page::default()
        )
        .await
        .unwrap()
        .len(),
        1
    );
    assert_eq!(s.calls_close_open(now(), "x").await.unwrap(), 0);
    s.ping().await.unwrap();
}
