# Compares what two libraries answer to sets of hints (hint_sets.c), by a list of the differences that are there and why.
#	awk -f compare_hints.awk -v LIBRARY=NAME EXPECTED ORIGINAL OURS
# Prints the differences that no line of EXPECTED is about, the lines of it that are about none, and how many there were.
#
# A line of EXPECTED has fields with tabs between them: which library (1.17, 2.x or *), which provider (a regular expression for
# the whole of it), the difference and the hints (regular expressions), and the reason.  A difference reads as
#	found +, found -	ours, or the original alone, has an info
#	error OURS ORIGINAL	neither has one, and their errors differ
#	NAME +BIT, NAME -BIT	a bit that ours has alone, or the original
#	NAME > OURS ORIGINAL	a number that is larger than the original's; with < one that is smaller
#	NAME = OURS ORIGINAL	other values
BEGIN { FS = "\t" }
FILENAME == ARGV[1] {
	if ($0 ~ /^#/ || $0 == "") next
	if (NF != 5) { print "not a line of five fields: " $0; bad++; next }
	if ($1 != "*" && $1 != LIBRARY) next
	rules++
	provider[rules] = "^(" $2 ")$"; difference[rules] = $3; hints[rules] = $4; line[rules] = FNR
	next
}
FILENAME == ARGV[2] { original[$1 "\t" $2 "\t" $3] = $4; sets++; next }
{
	key = $1 "\t" $2 "\t" $3
	if (!(key in original)) { print "only ours was asked: " key; bad++; next }
	compare($1, $2, $3, $4, original[key])
	delete original[key]
}
END {
	for (key in original) { print "only the original was asked: " key; bad++ }
	for (n = 1; n <= rules; n++)
		if (!(n in used)) { print "line " line[n] " of the list is about no difference any more"; bad++ }
	print sets + 0 " sets, " differences + 0 " differences, " bad + 0 " not expected"
	exit(bad > 0)
}
function differs(prov, number, set, what,	n) {
	differences++
	# only expressions that are about the hints of this set, and the first that does
	for (n = 1; n <= rules; n++)
		if (what ~ difference[n] && prov ~ provider[n] && set ~ hints[n]) { used[n]++; return }
	bad++
	print prov "\t" number "\t" what "\t" set
}
function compare(prov, number, set, ours, theirs,	have, want, n, m, pair, name, a, b) {
	if (ours ~ /^error/ || theirs ~ /^error/) {
		if (ours ~ /^error/ && theirs ~ /^error/) {
			if (ours != theirs) differs(prov, number, set, "error " substr(ours, 7) " " substr(theirs, 7))
		} else
			differs(prov, number, set, ours ~ /^error/ ? "found -" : "found +")
		return
	}
	n = split(ours, have, " "); m = split(theirs, want, " ")
	# what other providers and types of endpoints have is not compared
	for (n = 1; n <= m; n++)
		if (want[n] ~ /^(provider|ep_type)=/ && have[n] != want[n]) {
			name = substr(want[n], 1, index(want[n], "=") - 1)
			differs(prov, number, set, name " = " substr(have[n], length(name) + 2) " " substr(want[n], length(name) + 2))
			return
		}
	for (n = 1; n <= m; n++) {
		if (have[n] == want[n]) continue
		name = substr(want[n], 1, index(want[n], "=") - 1)
		a = substr(have[n], length(name) + 2); b = substr(want[n], length(name) + 2)
		if (index(have[n], name "=") != 1)
			differs(prov, number, set, "attribute " have[n] " " want[n])
		else if (name ~ /caps$|mode$|flags$|order$/)
			bits(prov, number, set, name, a, b)
		else if ((a == "max" || a ~ /^[0-9]+$/) && (b == "max" || b ~ /^[0-9]+$/) && name ~ /size|cnt|limit|max_|total/)
			differs(prov, number, set, name " " (b != "max" && (a == "max" || a + 0 > b + 0) ? ">" : "<") " " a " " b)
		else
			differs(prov, number, set, name " = " a " " b)
	}
}
function bits(prov, number, set, name, a, b,	list, n, i) {
	n = split(a, list, ",")
	for (i = 1; i <= n; i++)
		if (index("," b ",", "," list[i] ",") == 0) differs(prov, number, set, name " +" list[i])
	n = split(b, list, ",")
	for (i = 1; i <= n; i++)
		if (index("," a ",", "," list[i] ",") == 0) differs(prov, number, set, name " -" list[i])
}
