"""The words of the toy language pair, as tables; within a table in order of frequency.

Kinds of noun, one letter each: P person, A animal, G plant, S thing that stands, L thing that lies, H thing that hangs,
T text, C clothing, Q container, Z furniture with a top, F food, D drink, V vehicle, B building or place, J wall,
N water, I idea, E event, Y material; tools by use: O looking, K opening, M mending, W writing, X cutting.
"""

# kind: English[/plural], German article (! for weak masculines: -n in all cases but the first), singular, plural
NOUNS = {
    "P": """man/men der Mann Männer, woman/women die Frau Frauen, child/children das Kind Kinder,
        teacher der Lehrer Lehrer, friend der Freund Freunde, boy der! Junge Jungen, doctor der Arzt Ärzte,
        mother die Mutter Mütter, father der Vater Väter, student der! Student Studenten,
        neighbour der! Nachbar Nachbarn, girl das Mädchen Mädchen, sister die Schwester Schwestern,
        brother der Bruder Brüder, daughter die Tochter Töchter, son der Sohn Söhne, aunt die Tante Tanten,
        uncle der Onkel Onkel, colleague der! Kollege Kollegen, policeman/policemen der! Polizist Polizisten,
        nurse die Krankenschwester Krankenschwestern, writer der Schriftsteller Schriftsteller,
        singer die Sängerin Sängerinnen, baker der Bäcker Bäcker, farmer der! Bauer Bauern,
        customer der! Kunde Kunden, judge der Richter Richter, soldier der! Soldat Soldaten, guest der Gast Gäste,
        thief/thieves der Dieb Diebe, painter die Malerin Malerinnen, grandmother die Großmutter Großmütter,
        journalist der! Journalist Journalisten, king der König Könige, queen die Königin Königinnen,
        driver der Fahrer Fahrer, cook der Koch Köche, witness die Zeugin Zeuginnen,
        mayor der Bürgermeister Bürgermeister, gardener der Gärtner Gärtner, pupil die Schülerin Schülerinnen,
        musician der Musiker Musiker, shepherd der! Hirte Hirten, carpenter der Zimmermann Zimmermänner,
        waitress die Kellnerin Kellnerinnen, pharmacist die Apothekerin Apothekerinnen, sailor der! Matrose Matrosen,
        widow die Witwe Witwen, blacksmith der Schmied Schmiede, dwarf der Zwerg Zwerge""",
    "A": """dog der Hund Hunde, cat die Katze Katzen, horse das Pferd Pferde, bird der Vogel Vögel, cow die Kuh Kühe,
        frog der Frosch Frösche, pig das Schwein Schweine, mouse/mice die Maus Mäuse, calf/calves das Kalb Kälber,
        bear der! Bär Bären, wolf/wolves der Wolf Wölfe, lion der! Löwe Löwen, duck die Ente Enten,
        goat die Ziege Ziegen, monkey der! Affe Affen, hen das Huhn Hühner, fox der Fuchs Füchse,
        snake die Schlange Schlangen, elephant der! Elefant Elefanten, donkey der Esel Esel,
        rabbit das Kaninchen Kaninchen, hedgehog der Igel Igel, camel das Kamel Kamele, owl die Eule Eulen,
        squirrel das Eichhörnchen Eichhörnchen, stork der Storch Störche""",
    "G": """tree der Baum Bäume, flower die Blume Blumen, rose die Rose Rosen, bush der Busch Büsche,
        oak die Eiche Eichen, fir die Tanne Tannen, tulip die Tulpe Tulpen, hedge die Hecke Hecken,
        birch die Birke Birken, thistle die Distel Disteln""",
    "S": """lamp die Lampe Lampen, bottle die Flasche Flaschen, glass das Glas Gläser, cup die Tasse Tassen,
        clock die Uhr Uhren, vase die Vase Vasen, computer der Computer Computer, radio das Radio Radios,
        ladder die Leiter Leitern, candle die Kerze Kerzen, pot der Topf Töpfe, plate der Teller Teller,
        bucket der Eimer Eimer, statue die Statue Statuen, broom der Besen Besen, jug der Krug Krüge,
        globe der Globus Globen, umbrella der Schirm Schirme, chessboard das Schachbrett Schachbretter,
        trophy der Pokal Pokale""",
    "L": """ball der Ball Bälle, ring der Ring Ringe, stone der Stein Steine, coin die Münze Münzen,
        blanket die Decke Decken, pillow das Kissen Kissen, rope das Seil Seile, carpet der Teppich Teppiche,
        doll die Puppe Puppen, stamp die Briefmarke Briefmarken, phone das Telefon Telefone,
        guitar die Gitarre Gitarren, gift das Geschenk Geschenke, towel das Handtuch Handtücher,
        feather die Feder Federn, comb der Kamm Kämme, shell die Muschel Muscheln, necklace die Halskette Halsketten,
        violin die Geige Geigen, drum die Trommel Trommeln""",
    "H": """picture das Bild Bilder, mirror der Spiegel Spiegel, curtain der Vorhang Vorhänge,
        poster das Plakat Plakate, flag die Fahne Fahnen, calendar der Kalender Kalender,
        portrait das Porträt Porträts, lantern die Laterne Laternen""",
    "T": """book das Buch Bücher, letter der Brief Briefe, newspaper die Zeitung Zeitungen,
        report der Bericht Berichte, map die Karte Karten, text der Text Texte, novel der Roman Romane,
        contract der Vertrag Verträge, poem das Gedicht Gedichte, list die Liste Listen,
        magazine die Zeitschrift Zeitschriften, note der Zettel Zettel, article der Artikel Artikel,
        recipe das Rezept Rezepte, diary/diaries das Tagebuch Tagebücher, invoice die Rechnung Rechnungen,
        leaflet das Flugblatt Flugblätter""",
    "C": """coat der Mantel Mäntel, hat der Hut Hüte, shirt das Hemd Hemden, dress das Kleid Kleider,
        jacket die Jacke Jacken, shoe der Schuh Schuhe, skirt der Rock Röcke, scarf/scarves der Schal Schals,
        cap die Mütze Mützen, glove der Handschuh Handschuhe, boot der Stiefel Stiefel, belt der Gürtel Gürtel,
        sock die Socke Socken, apron die Schürze Schürzen, tie die Krawatte Krawatten""",
    "Q": """box die Kiste Kisten, bag die Tasche Taschen, basket der Korb Körbe, suitcase der Koffer Koffer,
        drawer die Schublade Schubladen, cupboard der Schrank Schränke, chest die Truhe Truhen, sack der Sack Säcke,
        barrel das Fass Fässer, backpack der Rucksack Rucksäcke""",
    "Z": """table der Tisch Tische, chair der Stuhl Stühle, bed das Bett Betten, shelf/shelves das Regal Regale,
        bench die Bank Bänke, sofa das Sofa Sofas, desk der Schreibtisch Schreibtische, stool der Hocker Hocker,
        windowsill das Fensterbrett Fensterbretter""",
    "F": """bread das Brot Brote, apple der Apfel Äpfel, cake der Kuchen Kuchen, soup die Suppe Suppen,
        egg das Ei Eier, cheese der Käse Käse, potato/potatoes die Kartoffel Kartoffeln, sausage die Wurst Würste,
        pear die Birne Birnen, tomato/tomatoes die Tomate Tomaten, carrot die Möhre Möhren, salad der Salat Salate,
        cherry/cherries die Kirsche Kirschen, nut die Nuss Nüsse, onion die Zwiebel Zwiebeln, biscuit der Keks Kekse,
        pumpkin der Kürbis Kürbisse, plum die Pflaume Pflaumen, dumpling der Knödel Knödel""",
    "D": """coffee der Kaffee Kaffees, water das Wasser Wasser, tea der Tee Tees, milk die Milch Milch,
        wine der Wein Weine, beer das Bier Biere, juice der Saft Säfte, lemonade die Limonade Limonaden,
        cocoa der Kakao Kakaos""",
    "V": """car das Auto Autos, train der Zug Züge, bicycle das Fahrrad Fahrräder, ship das Schiff Schiffe,
        plane das Flugzeug Flugzeuge, tram die Straßenbahn Straßenbahnen, boat das Boot Boote,
        lorry/lorries der Lastwagen Lastwagen, motorcycle das Motorrad Motorräder, ferry/ferries die Fähre Fähren,
        sledge der Schlitten Schlitten""",
    "B": """house das Haus Häuser, garden der Garten Gärten, school die Schule Schulen, room das Zimmer Zimmer,
        church die Kirche Kirchen, kitchen die Küche Küchen, hotel das Hotel Hotels, park der Park Parks,
        office das Büro Büros, library/libraries die Bibliothek Bibliotheken, forest der Wald Wälder,
        museum das Museum Museen, shop der Laden Läden, village das Dorf Dörfer,
        restaurant das Restaurant Restaurants, theatre das Theater Theater, cellar der Keller Keller,
        castle das Schloss Schlösser, factory/factories die Fabrik Fabriken, hospital das Krankenhaus Krankenhäuser,
        cinema das Kino Kinos, stable der Stall Ställe, tower der Turm Türme, prison das Gefängnis Gefängnisse,
        barn die Scheune Scheunen, monastery/monasteries das Kloster Klöster, cave die Höhle Höhlen,
        windmill die Windmühle Windmühlen""",
    "J": """wall die Wand Wände, door die Tür Türen, window das Fenster Fenster, fence der Zaun Zäune,
        gate das Tor Tore""",
    "N": """lake der See Seen, river der Fluss Flüsse, beach der Strand Strände, stream der Bach Bäche,
        canal der Kanal Kanäle, coast die Küste Küsten""",
    "I": """question die Frage Fragen, plan der Plan Pläne, story/stories die Geschichte Geschichten,
        idea die Idee Ideen, problem das Problem Probleme, answer die Antwort Antworten, dream der Traum Träume,
        mistake der Fehler Fehler, rule die Regel Regeln, secret das Geheimnis Geheimnisse,
        decision die Entscheidung Entscheidungen, promise das Versprechen Versprechen,
        proposal der Vorschlag Vorschläge, truth die Wahrheit Wahrheiten, riddle das Rätsel Rätsel,
        hope die Hoffnung Hoffnungen, rumour das Gerücht Gerüchte, danger die Gefahr Gefahren""",
    "E": """party/parties die Feier Feiern, concert das Konzert Konzerte, game das Spiel Spiele,
        journey die Reise Reisen, meeting die Sitzung Sitzungen, wedding die Hochzeit Hochzeiten,
        exam die Prüfung Prüfungen, lecture der Vortrag Vorträge, war der Krieg Kriege, storm der Sturm Stürme,
        festival das Fest Feste, funeral die Beerdigung Beerdigungen, election die Wahl Wahlen,
        race das Rennen Rennen""",
    "Y": """wood das Holz Hölzer, gold das Gold Golde, silver das Silber Silber, iron das Eisen Eisen,
        paper das Papier Papiere, leather das Leder Leder, wool die Wolle Wollen, stone der Stein Steine,
        clay der Ton Tone, ivory das Elfenbein Elfenbeine""",
    "O": """telescope das Fernrohr Fernrohre, camera die Kamera Kameras, magnifier die Lupe Lupen,
        microscope das Mikroskop Mikroskope""",
    "K": """key der Schlüssel Schlüssel, crowbar das Brecheisen Brecheisen, wire der Draht Drähte,
        lever der Hebel Hebel""",
    "M": """hammer der Hammer Hämmer, screwdriver der Schraubenzieher Schraubenzieher, saw die Säge Sägen,
        shovel die Schaufel Schaufeln, axe die Axt Äxte, nail der Nagel Nägel""",
    "W": """pen der Stift Stifte, pencil der Bleistift Bleistifte, brush der Pinsel Pinsel,
        quill der Federkiel Federkiele""",
    "X": """knife/knives das Messer Messer, fork die Gabel Gabeln, spoon der Löffel Löffel""",
}

# First parts of compounds: English word, German combining form. They go with every thing: `kitchen lamp`, Küchenlampe.
COMPOUNDS = """garden Garten, kitchen Küchen, winter Winter, city Stadt, travel Reise, school Schul, summer Sommer,
    work Arbeits, family Familien, children Kinder, night Nacht, birthday Geburtstags, study Studien, paper Papier,
    wall Wand, party Feier, forest Wald, office Büro, toy Spielzeug, hotel Hotel, farm Bauernhof, village Dorf,
    mountain Berg, storage Lager, army Armee, museum Museums, film Film, police Polizei, spring Frühlings,
    emergency Not, steam Dampf, replacement Ersatz, luxury Luxus, christmas Weihnachts, practice Übungs,
    harbour Hafen, palace Palast, pocket Taschen, autumn Herbst"""

# English, German, kinds it goes with (* is all); after a slash another translation for other kinds.
ADJECTIVES = """old alt *, big groß *, new neu SLHTCQZVBIEOKMWX, small klein *, good gut *,
    beautiful schön PAGSLHTCBNE, young jung PA, long lang TIELC, black schwarz ASLCQZVKMW, poor arm PA/TF schlecht,
    heavy schwer SLQZTKM/E heftig, strange seltsam *, red rot SLHCQZVGF, little klein PASLBV,
    short klein P/TIELC kurz, white weiß ASLHCQZV, expensive teuer SLHTCQZVOKMWXFD, hard hart FLYZ/IE schwierig,
    fresh frisch FD, strong stark PADE, cold kalt FDBN, hot heiß FD, dark dunkel BH, important wichtig PTIE,
    green grün SLHCQZVG, rich reich P, broken kaputt SLZVOQ, clean sauber SLCQZB, happy glücklich PA,
    warm warm FDCBN, dirty schmutzig SLCQZVX, cheap billig SLHTCQZVFD, tired müde PA, loud laut PVE,
    tall groß P/GBS hoch, clever klug PAI, wild wild A, famous berühmt PTBE, light hell BH/SLQC leicht,
    round rund SLHZ, blue blau SLHCQZV, empty leer SQBT, wet nass ASLCZ, sick krank PA/I schlecht,
    sharp scharf XM/PI klug, wonderful wunderbar *, secret geheim TIE, modern modern BVSHT, yellow gelb SLHCQZVG,
    sweet süß FDA, sour sauer FD, dangerous gefährlich PAVNEIX, free frei P/ED kostenlos, lazy faul PA/F verfault,
    funny lustig PAITE, quiet leise A/PBN ruhig, brave mutig PA, deep tief N, lonely einsam PAB, polite höflich P,
    hungry hungrig PA, curious neugierig PA, ancient uralt BTHNI, smooth glatt SLZ, thin dünn PAT,
    elegant elegant PCHV, gloomy düster BNHI, rusty rostig KMXV, crooked krumm GKM, shy schüchtern PA,
    greedy gierig PA, colourful bunt HCLG, mysterious rätselhaft PTIEB, stubborn stur PA"""

# Times: tense they fit (a present, b past, c both), label, English words with tags (the last is the head), German.
TIMES = """b NP yesterday/NN=gestern, a NP today/NN=heute, a ADVP now/RB=jetzt, a NP tomorrow/NN=morgen,
    b NP last/JJ week/NN=letzte Woche, c NP every/DT day/NN=jeden Tag, b NP last/JJ year/NN=letztes Jahr,
    c PP in/IN the/DT morning/NN=am Morgen, c PP on/IN Monday/NNP=am Montag, c PP in/IN the/DT evening/NN=am Abend,
    c PP at/IN night/NN=in der Nacht, a NP this/DT week/NN=diese Woche, c PP on/IN Sunday/NNP=am Sonntag,
    c NP every/DT year/NN=jedes Jahr, b NP last/JJ month/NN=letzten Monat, c PP in/IN summer/NN=im Sommer,
    a ADVP soon/RB=bald, c PP on/IN Friday/NNP=am Freitag, c NP every/DT week/NN=jede Woche,
    c PP in/IN winter/NN=im Winter, c PP at/IN noon/NN=zu Mittag, b ADVP recently/RB=neulich,
    c PP on/IN Saturday/NNP=am Samstag, c PP in/IN May/NNP=im Mai, a NP next/JJ month/NN=nächsten Monat,
    c PP in/IN March/NNP=im März, c PP at/IN midnight/NN=um Mitternacht, c PP in/IN October/NNP=im Oktober,
    c PP on/IN Wednesday/NNP=am Mittwoch"""
UNITS = """day der Tag Tage, year das Jahr Jahre, week die Woche Wochen, hour die Stunde Stunden,
    month der Monat Monate, minute die Minute Minuten, century/centuries das Jahrhundert Jahrhunderte"""
OFTEN = """often oft, always immer, sometimes manchmal, usually meistens, already schon, still noch, rarely selten,
    probably wahrscheinlich, certainly bestimmt, perhaps vielleicht"""
MANNERS = """quickly schnell, slowly langsam, quietly leise, carefully vorsichtig, happily fröhlich, alone allein,
    secretly heimlich, patiently geduldig, well gut, loudly laut, together zusammen, angrily wütend, proudly stolz,
    gladly gern, politely höflich, nervously nervös, gently sanft, clumsily ungeschickt, silently schweigend,
    bravely tapfer, eagerly eifrig, hastily hastig"""

# English irregular verbs.
ENGLISH_IRREGULAR = """be was been, see saw seen, know knew known, find found found, buy bought bought,
    sell sold sold, hear heard heard, meet met met, understand understood understood, forget forgot forgotten,
    read read read, write wrote written, draw drew drawn, put put put, take took taken, build built built,
    break broke broken, cut cut cut, eat ate eaten, drink drank drunk, wear wore worn, bring brought brought,
    give gave given, send sent sent, lend lent lent, tell told told, steal stole stolen, forgive forgave forgiven,
    think thought thought, fight fought fought, sleep slept slept, wake woke woken, get got got, leave left left,
    sing sang sung, run ran run, swim swam swum, come came come, go went gone, fall fell fallen, burn burnt burnt,
    begin began begun, grow grew grown, shine shone shone, sit sat sat, stand stood stood, lie lay lain,
    drive drove driven, fly flew flown, ride rode ridden, say said said, have had had, do did done, lose lost lost,
    win won won, throw threw thrown, hide hid hidden, feed fed fed, catch caught caught, show showed shown,
    hang hung hung, bite bit bitten, forbid forbade forbidden, dream dreamt dreamt"""

# German verbs that are not weak: infinitive, third person singular, preterite, participle.
GERMAN_IRREGULAR = """sehen sieht sah gesehen, kennen kennt kannte gekannt, wissen weiß wusste gewusst,
    finden findet fand gefunden, mögen mag mochte gemocht, rufen ruft rief gerufen, laden lädt lud geladen,
    treffen trifft traf getroffen, stehen steht stand gestanden, gessen gisst gaß gegessen, lesen liest las gelesen,
    schreiben schreibt schrieb geschrieben, schließen schließt schloss geschlossen, ziehen zieht zog gezogen,
    heben hebt hob gehoben, geben gibt gab gegeben, waschen wäscht wusch gewaschen, brechen bricht brach gebrochen,
    schneiden schneidet schnitt geschnitten, essen isst aß gegessen, fressen frisst fraß gefressen,
    trinken trinkt trank getrunken, saufen säuft soff gesoffen, tragen trägt trug getragen,
    schieben schiebt schob geschoben, bringen bringt brachte gebracht, leihen leiht lieh geliehen,
    bieten bietet bot geboten, stehlen stiehlt stahl gestohlen, sprechen spricht sprach gesprochen,
    helfen hilft half geholfen, zeihen zeiht zieh geziehen, kommen kommt kam gekommen, denken denkt dachte gedacht,
    bitten bittet bat gebeten, hängen hängt hing gehangen, nehmen nimmt nahm genommen,
    schlafen schläft schlief geschlafen, gehen geht ging gegangen, fahren fährt fuhr gefahren,
    singen singt sang gesungen, laufen läuft lief gelaufen, schwimmen schwimmt schwamm geschwommen,
    fallen fällt fiel gefallen, schwinden schwindet schwand geschwunden, sterben stirbt starb gestorben,
    brennen brennt brannte gebrannt, fangen fängt fing gefangen, wachsen wächst wuchs gewachsen,
    bleiben bleibt blieb geblieben, sitzen sitzt saß gesessen, liegen liegt lag gelegen,
    fliegen fliegt flog geflogen, reiten reitet ritt geritten, werfen wirft warf geworfen, lieren liert lor geloren,
    winnen winnt wann gewonnen, beißen beißt biss gebissen, pfehlen pfiehlt pfahl gepfohlen,
    zwingen zwingt zwang gezwungen, lassen lässt ließ gelassen, streichen streicht strich gestrichen,
    riechen riecht roch gerochen, sein ist war gewesen"""

# English [particle] = German : subject > objects > complement and flags. In German, prefix+ is separable, prefix- is
# not, * takes sein, sich is reflexive, ~ is weak in spite of a strong verb of that form. Subject: kinds. An object is
# [English preposition=][German preposition+]case:kinds, with _ for no English preposition, t for all portable things,
# * for everything concrete; the case nom swaps the roles, and the subject is dative. Complement: go (direction), put
# (place in the accusative), at (place), that, if, inf, weather. Flags: by and a kind of tool; stative, without
# progressive; to, the receiver comes last; object, who controls the infinitive.
VERBS = """
see = sehen : PA > acc:* > by O stative
buy = kaufen : P > acc:tFDVBZA
find = finden : PA > acc:tFAZVP
know = kennen : P > acc:PABTI > stative
read = lesen : P > acc:T
love = lieben : P > acc:PA > stative
hear = hören : PA > acc:PAEV > stative
visit = be-suchen : P > acc:PBE
eat = essen : P > acc:F > by X
eat = fressen : A > acc:F
open = öffnen : P > acc:JQB > by K
like = mögen : P > acc:PABDI > stative
like = schmecken : P > nom:F > stative
miss = fehlen : P > nom:PA > stative
need = brauchen : P > acc:tVDZP > stative
write = schreiben : P > acc:T > by W
drink = trinken : P > acc:D
drink = saufen : A > acc:D
meet = treffen : P > acc:P
look = an+sehen : PA > at=acc:PtBGVA
look = suchen : PA > for=acc:PAtBV
look = auf+passen : P > after=auf+acc:PAB
call = an+rufen : P > acc:P
call = rufen : P > acc:A
invite = ein+laden : P > acc:P
understand = ver-stehen : P > acc:PIT > stative
forget = ver-gessen : P > acc:PItE
carry = tragen : PA > acc:tF
wear = tragen : P > acc:C
wash = waschen : P > acc:CPAV
clean = putzen : P > acc:BZSVJ
repair = reparieren : P > acc:VSZBQJ > by M
build = bauen : P > acc:BVZ > by M
destroy = zer-stören : PE > acc:BVtZ > by M
break = zer-brechen : PA > acc:SH > by M
break = brechen : P > acc:I
cut = schneiden : P > acc:FGL > by X
draw = zeichnen : P > acc:PAGHB > by W
sign = unter-schreiben : P > acc:T > by W
examine = unter-suchen : P > acc:PAtGF > by O
watch = be-obachten : PA > acc:PAGV > by O
watch = sich an+sehen : P > acc:EH
sell = ver-kaufen : P > acc:tFDVBZA
lose = ver-lieren : P > acc:tAE
win = ge-winnen : P > acc:E
steal = stehlen : P > acc:tFVA
hide = ver-stecken : P > acc:tFD
throw away = weg+werfen : P > acc:tF
switch on = an+schalten : P > acc:S
switch off = aus+schalten : P > acc:S
put on = an+ziehen : P > acc:C
take off = aus+ziehen : P > acc:C
take = nehmen : P > acc:tFV
pick up = ab+holen : P > acc:P
pick up = auf+heben : P > acc:tF
close = zu+machen : P > acc:JQB
lock = ab+schließen : P > acc:JQBV > by K
prepare = vor+be-reiten~ : P > acc:E
prepare = zu+be-reiten~ : P > acc:FD > by X
cook = kochen : P > acc:FD
give up = auf+geben : P > acc:IE
cancel = ab+sagen : P > acc:E
bring back = zurück+bringen : P > acc:tVA
hunt = jagen : PA > acc:A
catch = fangen : PA > acc:A
bite = beißen : A > acc:PA
feed = füttern : P > acc:A
greet = be-grüßen : P > acc:P
admire = be-wundern : P > acc:PBHE > stative
paint = malen : P > acc:PAGH > by W
paint = streichen : P > acc:JBZV > by W
push = schieben : PA > acc:ZVQ
pull = ziehen : PA > acc:VQLZ
change = ändern : P > acc:IT
leave = ver-lassen : P > acc:BPE
save = retten : P > acc:PA
save = speichern : P > acc:T
help = helfen : P > dat:PA
thank = danken : P > dat:P
answer = antworten : P > dat:P
answer = be-antworten : P > acc:IT
follow = *folgen : PA > dat:PAVI
listen = zu+hören : PA > to=dat:PE
trust = ver-trauen : P > dat:P > stative
congratulate = gratulieren : P > dat:P
belong = ge-hören : tVBA > to=dat:P > stative
forgive = ver-zeihen : P > dat:P
serve = dienen : P > dat:PI
run = *be-gegnen : P > into=dat:PA
wait = warten : PA > for=auf+acc:PVAE
think = denken : P > of=an+acc:PABIE
talk = sprechen : P > about=über+acc:PAIETBV
laugh = lachen : P > at=über+acc:PAICH
believe = glauben : P > in=an+acc:PI > stative
ask = bitten : P > for=um+acc:FDTI
dream = träumen : P > of=von+dat:PABVE
take part = teil+nehmen : P > in=an+dat:E
play = spielen : PA > with=mit+dat:PAL
play = spielen : P > acc:E
fight = kämpfen : PA > against=gegen+acc:PAI
fight = kämpfen : P > for=für+acc:PI
remember = sich er-innern : P > _=an+acc:PABEI > stative
complain = sich be-schweren : P > about=über+acc:PFBEAI
fear = sich fürchten : PA > _=vor+dat:PAEI > stative
work = arbeiten : P > on=an+dat:IT
depend = ab+hängen : IE > on=von+dat:PIE > stative
smell = riechen : BCDZQ > of=nach+dat:FG > stative
apologize = sich ent-schuldigen : P > to=bei+dat:P
give = geben : P > dat:P acc:tFDVA
show = zeigen : P > dat:P acc:tBVAZ
send = schicken : P > dat:P acc:TLCQFH
lend = leihen : P > dat:P acc:tVY
offer = an+bieten : P > dat:P acc:FDI
return = zurück+geben : P > dat:P acc:tV > to
explain = er-klären : P > dat:P acc:IT > to
recommend = em-pfehlen : P > dat:P acc:TBFD > to
tell = er-zählen : P > dat:P acc:I
bring = bringen : P > dat:P acc:tFD
sell = ver-kaufen : P > dat:P acc:tVA
sleep = schlafen : PA
laugh = lachen : P
work = arbeiten : P
wake up = *auf+wachen : PA
get up = *auf+stehen : PA
arrive = *an+kommen : PV
leave = *weg+gehen : P
leave = *ab+fahren : V
run = *laufen : PA
run = funktionieren : SVO
sing = singen : PA
dance = tanzen : P
swim = *schwimmen : PA
cry = weinen : P
smile = lächeln : P
fall over = *um+fallen : PASVG
disappear = *ver-schwinden : PAtV
die = *sterben : PAG
begin = an+fangen : E
end = auf+hören : E
take place = statt+finden : E
come back = *zurück+kommen : PAV
rest = sich aus+ruhen : PA
hurry = sich be-eilen : P
burn = brennen : BZGVT
grow = *wachsen : GA
shine = leuchten : SN
bark = bellen : A
whisper = flüstern : P
move = *um+ziehen : P
go = *gehen : P > _ > go
come = *kommen : PA > _ > go
drive = *fahren : P > _ > go
travel = *reisen : P > _ > go
fly = *fliegen : PA > _ > go
run = *laufen : PA > _ > go
return = *zurück+kehren : PA > _ > go
ride = *reiten : P > _ > go
put = stellen : P > acc:SZ > put
put = legen : P > acc:LTCOKMWXF > put
put = setzen : P > acc:A > put
hang = hängen~ : P > acc:HC > put
hide = ver-stecken : PA > acc:tFD > at
stand = stehen : PASZG > _ > at stative
lie = liegen : PALTC > _ > at
sit = sitzen : PA > _ > at
live = wohnen : PA > _ > at stative
stay = *bleiben : PA > _ > at
be = *sein : PA > _ > at stative
be = stehen : SZVG > _ > at stative
be = liegen : LTCOKMWX > _ > at stative
be = hängen : H > _ > at stative
know = wissen : P > _ > that stative
say = sagen : P > _ > that
believe = glauben : P > _ > that stative
think = denken : P > _ > that
hope = hoffen : P > _ > that
hear = hören : P > _ > that stative
claim = be-haupten : P > _ > that
notice = be-merken : P > _ > that stative
tell = er-zählen : P > dat:P > that
promise = ver-sprechen : P > dat:P > that
find out = heraus+finden : P > _ > that
see = sehen : P > _ > that stative
know = wissen : P > _ > if stative
ask = fragen : P > acc:P > if
wonder = sich fragen : P > _ > if
find out = heraus+finden : P > _ > if
check = prüfen : P > _ > if
try = ver-suchen : PA > _ > inf
hope = hoffen : P > _ > inf
forget = ver-gessen : P > _ > inf
promise = ver-sprechen : P > dat:P > inf
decide = be-schließen : P > _ > inf
begin = an+fangen : PA > _ > inf
plan = planen : P > _ > inf
ask = bitten : P > acc:P > inf object
force = zwingen : P > acc:P > inf object
allow = er-lauben : P > dat:P > inf object
forbid = ver-bieten : P > dat:P > inf object
refuse = sich weigern : P > _ > inf
rain = regnen : > _ > weather
snow = schneien : > _ > weather
thunder = donnern : > _ > weather
"""

FIRST_NAMES = """Anna, Peter, Maria, Thomas, Julia, Martin, Laura, Paul, Emma, Felix, Clara, Jonas, Sophie, Max,
    Hannah, Lukas, Eva, Simon, Nora, David, Ida, Oskar, Lena, Jakob, Marta, Robert, Olga, Viktor, Greta, Anton"""
LAST_NAMES = """Müller, Schmidt, Weber, Fischer, Becker, Hoffmann, Koch, Richter, Klein, Wolf, Neumann, Braun,
    Krüger, Lange"""
# German[:English]
CITIES = """Berlin, Hamburg, Wien:Vienna, Paris, London, München:Munich, Köln:Cologne, Rom:Rome, Dresden,
    Zürich:Zurich, Bremen, Prag:Prague, Leipzig, Warschau:Warsaw"""
# Parts of invented names: Wald|hofer, Kel|heim, Ka|ri|n.
STEMS = """Stein, Berg, Wald, Kel, Brun, Hof, Lind, Rosen, Alt, Neu, Eich, Grün, Mar, Tann, Hirsch, Wolfs, Mühl,
    Sand, Birken, Falken"""
FAMILY_ENDINGS = "meier, mann, bauer, er, bach, huber, feld, hofer, wirt, ner"
CITY_ENDINGS = "stadt, heim, burg, dorf, feld, hausen, au, brück, furt, tal"
SYLLABLES = (
    "Ka, Lo, Mi, Ta, Ru, Be, Sa, No, Ve, Di, Fa, Jo",
    "ri, la, ne, mo, vi, sa, to, dre, li, ka",
    "n, na, s, ra, ro, l",
)
TITLES = "Mr. Herr, Mrs. Frau, Dr. Doktor"
DEGREES = "very sehr, too zu, rather ziemlich, so so, especially besonders, almost fast"
# Predicates with a complement: adjective, German adjective, preposition, German preposition, case.
PREDICATES = """proud stolz of auf acc, satisfied zufrieden with mit dat, interested interessiert in an dat,
    angry böse at auf acc, famous bekannt for für acc, jealous eifersüchtig of auf acc"""
# German "als" for "when" in the past.
SUBORDINATORS = """because=weil, when=wenn, if=wenn, although=obwohl, before=bevor, while=während, after=nachdem,
    so that=damit, until=bis"""

# Where: English, German, case, kinds (city: the name of one).
PLACES = """in/in/dat/B, in/in/dat/city, by/an/dat/N, behind/hinter/dat/BG, under/unter/dat/G,
    near/in der Nähe von/dat/BN, beside/neben/dat/ZV"""
PLACES_OF_THINGS = "on/auf/dat/Z, in/in/dat/Q, under/unter/dat/Z, beside/neben/dat/SZ, behind/hinter/dat/SQ"
PLACES_ON_WALLS = "on/an/dat/J, behind/hinter/dat/Z, beside/neben/dat/J"
DIRECTIONS = """to/in/acc/B, to/nach/dat/city, to/zu/dat/P, from/aus/dat/city, to/an/acc/N, from/aus/dat/B,
    to/zu/dat/E, through/durch/acc/B, from/von/dat/P"""
TARGETS = "on/auf/acc/Z, into/in/acc/Q, under/unter/acc/Z, beside/neben/acc/SZ, behind/hinter/acc/SQ"
TARGETS_ON_WALLS = "on/an/acc/J, beside/neben/acc/J"
# What hangs on a noun: its kinds, then as above; "gen" is the genitive; ! only before the verb, which could claim it.
ATTACHMENTS = """SLHTCQZVBIJNE/of//gen/P, SLC/of/aus/dat/Y, P/with/mit/dat/COKMWXL, P/from/aus/dat/city,
    B/with/mit/dat/GJ, T/about/über/acc/PAIEV, T/by/von/dat/P, T/for/für/acc/P, Q/with/mit/dat/OKMWXF,
    B!/by/an/dat/N, PASLTZ!/in/in/dat/B, PASLTZ!/on/auf/dat/Z"""

ENGLISH_UNITS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
    seventeen eighteen nineteen"""
ENGLISH_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
GERMAN_UNITS = """null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn
    siebzehn achtzehn neunzehn"""
GERMAN_TENS = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig"
