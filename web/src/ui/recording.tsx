// The temporary recording of a server's arguments and results: its state, and the buttons that start and end it.
import { CircleDot } from "lucide-react";
import { useState } from "react";

import { api, ok, useChange, type Server } from "@/api/client";
import { moment } from "@/lib";
import { attempt } from "./overlay";
import { Button, Notice } from "./parts";

const HOUR = 3600;

/** Starts a recording of one hour, or ends it. */
export function useRecording(server: Server) {
  const changeList = useChange("servers");
  const changeOne = useChange("server", server.id!);
  const params = { path: { id: server.id! } };
  const start = () => attempt(() => changeOne(changeList(ok(api.PUT("/api/v1/mcp/servers/{id}/recording", { params, body: { seconds: HOUR } })))), `Bodies of ${server.name} are recorded for an hour.`);
  const end = () => attempt(() => changeOne(changeList(ok(api.DELETE("/api/v1/mcp/servers/{id}/recording", { params })))), `Bodies of ${server.name} are no longer recorded.`);
  return { start, end };
}

/** The button that starts a recording. */
export function RecordButton({ server }: { server: Server }) {
  const { start } = useRecording(server);
  const [busy, setBusy] = useState(false);
  return (
    <Button icon={<CircleDot />} busy={busy} onClick={() => (setBusy(true), void start().finally(() => setBusy(false)))}>
      Record bodies for an hour
    </Button>
  );
}

/** Shown while a recording is active. */
export function RecordingNotice({ server }: { server: Server }) {
  const { end } = useRecording(server);
  if (!server.bodies_recorded_until) return null;
  return (
    <Notice tone="info" actions={<Button onClick={() => void end()}>Stop recording</Button>}>
      Arguments and results of calls to <strong className="font-medium">{server.name}</strong> are recorded until {moment(server.bodies_recorded_until)}.
    </Notice>
  );
}
