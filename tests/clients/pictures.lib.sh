# Pictures of pages, compared with those of golden/. UPDATE_GOLDEN=1 replaces these, after a look at them.

GOLDEN=$ROOT/tests/clients/golden
PICTURES=$ROOT/tests/clients/pictures.py

# The same letters on every machine.
need_fonts() {
    [ -e /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf ] ||
        skip "the pictures need the DejaVu fonts (Debian: apt-get install fonts-dejavu-core)"
    cat >"$DIR/fonts.conf" <<'END'
<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>/usr/share/fonts/truetype/dejavu</dir><cachedir prefix="xdg">fontconfig</cachedir>
<alias binding="strong"><family>sans-serif</family><prefer><family>DejaVu Sans</family></prefer></alias>
<alias binding="strong"><family>system-ui</family><prefer><family>DejaVu Sans</family></prefer></alias></fontconfig>
END
    export FONTCONFIG_FILE=$DIR/fonts.conf
    mkdir -p "$GOLDEN"
}

# judge PAGE NAME: the reduced picture NAME is the golden one of the page.
judge() {
    if [ "${UPDATE_GOLDEN:-0}" = 1 ]; then
        cp "$2.small.png" "$GOLDEN/$1-$2.png"
    fi
    echo "$2: $("$PICTURES" compare "$GOLDEN/$1-$2.png" "$2.small.png")" >"$2.said" ||
        fail "the page looks different, $(cat "$2.said"): $DIR/$2.png"
    cat "$2.said"
}
