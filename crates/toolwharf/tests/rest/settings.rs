//! The settings as the API shows them to an administrator.

use crate::{
    api::Api,
    common::{Setup, item},
};
use serde_json::{Value, json};

fn one<'t>(told: &'t Value, key: &str) -> &'t Value {
    item(&told["settings"], "key", key)
}

#[tokio::test]
async fn each_setting_has_its_value_and_where_it_is_from() {
    let text = "[limits]\nstop_grace = \"2s\"\n[agent]\nmodel = \"m\"\napi_key = \"sk-plain\"\n";
    let gateway = Setup::new().settings(text).serve().await;
    let admin = Api::admin(&gateway);
    let told = admin.get("/settings").await;
    let file = gateway.settings_file();
    let grace = one(&told, "limits.stop_grace");
    assert_eq!(grace["value"], r#""2s""#);
    assert_eq!(grace["default"], r#""10s""#);
    assert_eq!(grace["from"], format!("{}:2", file.display()));
    assert_eq!(one(&told, "listen")["from"], "default");
    assert_eq!(
        one(&told, "data_dir")["from"],
        "command line or environment"
    );
    assert_eq!(one(&told, "agent.api_key")["value"], "(hidden)");
    assert!(!told.to_string().contains("sk-plain"), "{told:#}");
    assert_eq!(told["problems"], json!([]));

    // A rejected edit does not take effect, and the reason is shown.
    gateway.replace(&file, "[limits]\nstop_grac = \"2s\"\n");
    let told = admin.get("/settings").await;
    let problem = told["problems"][0].as_str().expect("a problem");
    assert!(problem.contains("stop_grac"), "{problem}");
    assert!(problem.contains("did you mean `stop_grace`?"), "{problem}");
}

#[tokio::test]
async fn the_doctor_is_asked_for_those_without_a_terminal() {
    let entry = json!({"command": "no-such-program-here"});
    let gateway = Setup::new().server("one", entry).serve().await;
    let admin = Api::admin(&gateway);
    let told = admin.get("/doctor").await;
    assert_eq!(told["healthy"], false, "{told:#}");
    let findings = told["findings"].as_array().expect("findings");
    let named = |finding: &&Value| finding["what"].to_string().contains("no-such-program-here");
    let found = findings.iter().find(named).expect("the command");
    assert_eq!(found["level"], "problem");
    // `doctor` found this gateway and queried it.
    let text = told.to_string();
    assert!(!text.contains("no gateway is running"), "{told:#}");
}
