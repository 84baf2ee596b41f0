# A formula for a tap of Homebrew. It installs the static program, the client and the anchor: there is no archive for macOS.
class Switchboard < Formula
  desc "Logs in through an SSH ingress for Kubernetes, and keeps sessions"
  homepage "@REPOSITORY@"
  license "Apache-2.0"

  depends_on :linux

  on_intel do
    url "@RELEASE@/switchboard-@VERSION@-x86_64-unknown-linux-musl.tar.gz"
    sha256 "@SHA256 switchboard-@VERSION@-x86_64-unknown-linux-musl.tar.gz@"
  end
  on_arm do
    url "@RELEASE@/switchboard-@VERSION@-aarch64-unknown-linux-musl.tar.gz"
    sha256 "@SHA256 switchboard-@VERSION@-aarch64-unknown-linux-musl.tar.gz@"
  end

  def install
    bin.install "switchboard"
    man1.install Dir["man/*.1"]
    bash_completion.install "completions/switchboard.bash" => "switchboard"
    zsh_completion.install "completions/switchboard.zsh" => "_switchboard"
    fish_completion.install "completions/switchboard.fish"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/switchboard --version")
  end
end
