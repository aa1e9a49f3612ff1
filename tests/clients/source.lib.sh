# Sources of Debian's packages, for the tests that build programs out of them. Sourced after lib.sh.

# fetch_source PACKAGE: its source, unpacked below $DIR/apt, from the archives that this system installs
# from; of this release, or of one after it when the archive has no sources of this one. SOURCE is its folder.
fetch_source() {
    local package=$1
    command -v apt-get >/dev/null || return 1
    mkdir -p "$DIR/apt/lists/partial" "$DIR/apt/parts"
    local uri release key=/usr/share/keyrings/debian-archive-keyring.gpg
    local options=(-o "Dir::Etc::SourceList=$DIR/apt/none" -o "Dir::Etc::SourceParts=$DIR/apt/parts"
        -o "Dir::State::Lists=$DIR/apt/lists" -o APT::Sandbox::User=root)
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(ORIGIN)' 'Created-By: Packages' 2>/dev/null |
        awk '$3 == "Debian" && $2 !~ /-/ { print $1, $2; exit }' >"$DIR/apt/origin"
    read -r uri release <"$DIR/apt/origin" || return 1
    for release in "$release" stable testing trixie; do
        printf 'Types: deb-src\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' \
            "$uri" "$release" "$key" >"$DIR/apt/parts/source.sources"
        rm -f "$DIR"/apt/lists/*Sources*
        apt-get -qq "${options[@]}" update >"$DIR/apt/out" 2>&1 || continue
        (cd "$DIR/apt" && rm -rf "$package"* && apt-get -qq "${options[@]}" source "$package") \
            >"$DIR/apt/out" 2>&1 || continue
        SOURCE=$(find "$DIR/apt" -maxdepth 1 -type d -name "$package-*" | head -n 1)
        [ -n "$SOURCE" ] && return 0
    done
    return 1
}
