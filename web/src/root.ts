// The address of the gateway. A proxy may serve it below a path of its host, so no address in this page begins with a slash.
const script = import.meta.url;

/** The address of the gateway, with a slash at the end. Every script is in a folder of it. */
export const root = new URL("..", script);

/** Returns the address of a path of the gateway. */
export const at = (path: string): string => new URL(path, root).href;

/** Returns the path and the search of this page, as the gateway sees them. */
export const here = (): string => location.pathname.slice(root.pathname.length - 1) + location.search;
