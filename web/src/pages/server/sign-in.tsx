import { useQuery } from "@tanstack/react-query";
import { LogIn, LogOut } from "lucide-react";

import { ApiError, useChange, type Server } from "@/api/client";
import { beginLogin, endLogin, login, LOGIN_WORDS } from "@/api/logins";
import { moment } from "@/lib";
import { attempt } from "@/ui/overlay";
import { Badge, Button, Empty, Fact, Facts, Missing, Notice, Panel } from "@/ui/parts";

/** Shows the signed-in user of a server, and the expiry. */
export function SignIn({ server }: { server: Server }) {
  const change = useChange("logins");
  const { data, error, refetch } = useQuery(login(server));
  // Most servers need no sign-in: the gateway then responds with 404 or 409 and the reason.
  if (error instanceof ApiError && [404, 409].includes(error.status)) return <Empty icon={<LogIn />} title="No sign-in">{error.message}</Empty>;
  if (!data) return <Missing error={error} retry={refetch} rows={3} />;
  const [word, tone] = LOGIN_WORDS[data.state] ?? [data.state, "plain" as const];
  const end = () => attempt(() => change(endLogin(server.id!)), `${server.name} is signed out.`);
  return (
    <div className="flex max-w-3xl flex-col gap-4 p-4 md:p-6">
      {data.reason && <Notice tone="warn">{data.reason}</Notice>}
      <Panel
        title="Sign-in"
        actions={
          <div className="flex gap-2">
            {data.state !== "absent" && (
              <Button icon={<LogOut />} onClick={() => void end()}>
                Sign out
              </Button>
            )}
            {data.state !== "signed_in" && (
              <Button look="solid" icon={<LogIn />} onClick={() => void attempt(() => beginLogin(server.id!))}>
                Sign in
              </Button>
            )}
          </div>
        }
      >
        <Facts>
          <Fact name="State"><Badge tone={tone}>{word}</Badge></Fact>
          <Fact name="Used for">{data.mode === "user" ? "your calls only: each caller signs in separately" : "all callers: they share one sign-in"}</Fact>
          {data.project && <Fact name="Project">{data.project}</Fact>}
          {data.issuer && <Fact name="Signed in at"><span className="break-all">{data.issuer}</span></Fact>}
          {!!data.scopes?.length && <Fact name="Permissions"><code className="break-words">{data.scopes.join(" ")}</code></Fact>}
          {data.updated_at && <Fact name="Signed in or renewed">{moment(data.updated_at)}</Fact>}
          {data.expires_at && <Fact name="Token expires">{moment(data.expires_at)}; it is renewed before that</Fact>}
        </Facts>
      </Panel>
    </div>
  );
}
