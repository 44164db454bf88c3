/** How every test starts Chromium. Tests run as root, where Chromium refuses to use its sandbox. */
export const launchOptions = {
  executablePath: "/usr/bin/chromium-headless-shell",
  args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic"],
};
