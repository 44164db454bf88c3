// Event streams. `EventSource` is not used: it cannot send the page secret.
export type StreamEvent = { event: string; data: string; id?: string };

/** Yields the events of a response's body. A line may arrive in several pieces. */
export async function* events(body: Response["body"]): AsyncGenerator<StreamEvent> {
  const reader = body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let event = "message";
  let data: string[] = [];
  let id: string | undefined;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop()!;
      for (const line of lines.map((line) => line.replace(/\r$/, ""))) {
        if (line === "") {
          if (data.length) yield { event, data: data.join("\n"), ...(id === undefined ? {} : { id }) };
          event = "message";
          data = [];
        } else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
        else if (line.startsWith("event:")) event = line.slice(6).trim();
        else if (line.startsWith("id:")) id = line.slice(3).trim();
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
