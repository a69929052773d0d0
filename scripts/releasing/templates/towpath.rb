class Towpath < Formula
  desc "@summary@"
  homepage "@homepage@"
  version "@version@"
  license "@licence@"
  depends_on :linux

@cases@

  def install
    bin.install "bin/towpath"
    man1.install Dir["share/man/man1/*.1"]
    bash_completion.install "share/bash-completion/completions/towpath"
    zsh_completion.install "share/zsh/site-functions/_towpath"
    fish_completion.install "share/fish/vendor_completions.d/towpath.fish"
    doc.install Dir["share/doc/towpath/*"]
  end

  service do
    run [opt_bin/"towpath", "dev", "--data-dir", var/"towpath"]
    keep_alive true
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/towpath --version")
  end
end
