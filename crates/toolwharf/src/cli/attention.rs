//! The last lines of `ls`, about what needs a person.

use api::{Attention, Need, NeedKind};
use model::ProjectId;

use super::{
    http::{Api, of_project, path},
    print, shown,
};

/// Maximum number of servers that a line names.
const MAX_NAMED: usize = 3;

/// Prints one line for each kind of need.
pub(super) async fn say(api: &Api, project: Option<&ProjectId>) -> anyhow::Result<()> {
    let needed = path(&["attention"]) + &of_project(project);
    let needed: Attention = api.get(&needed).await?;
    for line in lines(&needed) {
        eprintln!("{}", print::printable(&line));
    }
    Ok(())
}

fn lines(needed: &Attention) -> Vec<String> {
    let of = |kinds: &[NeedKind]| -> Vec<&Need> {
        let needs = needed.needs.iter();
        needs.filter(|need| kinds.contains(&need.what)).collect()
    };
    let mut lines = Vec::new();
    if needed.tools > 0 {
        let tools = shown::tools(needed.tools);
        let wait = if needed.tools == 1 { "waits" } else { "wait" };
        lines.push(format!(
            "{tools} {wait} for approval: `toolwharf approvals ls`"
        ));
    }
    let sign_ins = of(&[NeedKind::SignIn]);
    if let Some(first) = sign_ins.first() {
        lines.push(format!(
            "{}: `toolwharf login {}`",
            counted(&sign_ins, "needs a sign-in", "need a sign-in"),
            argument(first)
        ));
    }
    if let Some(why) = &needed.backup {
        lines.push(format!("the last scheduled backup failed: {why}"));
    }
    if let Some(why) = &needed.certificate {
        lines.push(format!(
            "the changed certificate of the gateway cannot be used: {why}"
        ));
    }
    let down = of(&[NeedKind::Blocked, NeedKind::Failed]);
    if let Some(first) = down.first() {
        lines.push(format!(
            "{}: `toolwharf get {}` says why",
            counted(&down, "needs attention", "need attention"),
            argument(first)
        ));
    }
    lines
}

/// Returns `2 servers need a sign-in (a, b)`.
fn counted(needs: &[&Need], one: &str, more: &str) -> String {
    let mut names: Vec<&str> = needs.iter().map(|need| need.server.as_str()).collect();
    let count = names.len();
    names.truncate(MAX_NAMED);
    let mut names = names.join(", ");
    if count > MAX_NAMED {
        names.push_str(", …");
    }
    match count {
        1 => format!("1 server {one} ({names})"),
        count => format!("{count} servers {more} ({names})"),
    }
}

/// Returns the arguments that name the server in another command.
fn argument(need: &Need) -> String {
    match &need.project {
        Some(project) => format!("{} --project {project}", need.server),
        None => need.server.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(server: &str, what: NeedKind) -> Need {
        Need {
            id: server.to_owned(),
            server: server.to_owned(),
            project: (server == "shop").then(|| "p".to_owned()),
            what,
            tools: 0,
            reason: None,
        }
    }

    #[test]
    fn each_kind_of_need_has_a_line_with_its_command() {
        assert_eq!(lines(&Attention::default()), Vec::<String>::new());
        let needed = Attention {
            tools: 2,
            servers: 5,
            sign_ins: 1,
            backup: Some("the disk is full".to_owned()),
            certificate: Some("cannot read c.pem".to_owned()),
            needs: vec![
                need("a", NeedKind::Approval),
                need("shop", NeedKind::SignIn),
                need("b", NeedKind::Blocked),
                need("c", NeedKind::Failed),
                need("d", NeedKind::Failed),
                need("e", NeedKind::Failed),
            ],
        };
        assert_eq!(
            lines(&needed),
            [
                "2 tools wait for approval: `toolwharf approvals ls`",
                "1 server needs a sign-in (shop): `toolwharf login shop --project p`",
                "the last scheduled backup failed: the disk is full",
                "the changed certificate of the gateway cannot be used: cannot read c.pem",
                "4 servers need attention (b, c, d, …): `toolwharf get b` says why",
            ]
        );
    }
}
