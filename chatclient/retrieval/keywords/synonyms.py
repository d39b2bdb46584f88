"""English word lists for the search: stop words, and groups of words with similar meaning."""

_STOP_WORDS = """
a about additionally after afterwards all along already also am an and another any anything are as
assist assistance at based be because been before being both but by can could curious d did do
does doing don done each else ensure etc everything few finally find firstly for from furthermore
gave get gets getting give given going got had has have having he hello help her hey hi him his
how however i if in instead interested into is it its just know lastly let lets like ll look
looking m make many may me might mine more moreover most much my need needs no not now of off on
once or other our out over per please possible provide re really regarding s same secondly see
shall she should show since so some something still such sure t tell than thank thanks that the
their them then there these they thirdly this those to too under up us use used using ve very via
want wanted wants was we well were what when where which while who whom whose why will with within
without wondering would yes you your
"""

STOP_WORDS = frozenset(_STOP_WORDS.split())
"""Words that occur in any query, such as question words and conjunctions."""

_CONCEPTS = """
weather forecast temperature rain snow climate humidity sunny storm
buy purchase order shop shopping
buy acquire
sell sale
price cost fee fare expense charge
money cash payment pay
currency dollar euro pound yen usd eur gbp exchange
bank account balance deposit
loan mortgage credit lend borrow
stock share equity ticker nasdaq
invest investment portfolio fund
crypto cryptocurrency bitcoin ethereum coin token
tax taxation vat
invoice bill receipt
film movie cinema
picture photo image photograph
video clip footage
music song track melody
artist singer musician band
album playlist
play listen
book novel
article news headline story
author writer
read reading
write compose draft
email mail inbox
message sms chat text
phone call telephone mobile cellphone
send deliver dispatch
ship shipping delivery shipment parcel package
trip travel vacation journey holiday tour itinerary getaway
flight airline plane airport fly
hotel accommodation lodging room stay hostel
train railway rail
bus transit transport
car vehicle automobile
taxi cab ride uber
rent rental lease hire
book reserve reservation booking
restaurant dining eat food meal cuisine
recipe cook cooking dish ingredient
drink beverage cocktail wine beer
calorie nutrition diet nutrient
house home property estate apartment
job career employment position vacancy work
employee staff worker
company business firm corporation organization enterprise
customer client
product item goods merchandise
doctor physician medical health clinic
hospital clinic
disease illness symptom diagnosis condition
drug medicine medication pharmaceutical
exercise workout fitness gym training
sport game match team league
soccer football
player athlete
score result
movie show series tv television
event concert festival
ticket admission
calendar schedule agenda appointment meeting event
reminder alarm alert notification notify
task todo
date day
time hour clock timezone
location place address city area
map direction route navigation
near nearby closest nearest local around
distance far mile kilometer
coordinate latitude longitude geocode
country nation
language translate translation
word definition meaning dictionary vocabulary synonym
sentence text paragraph
grammar spelling proofread
summarize summary abstract condense
course class lesson tutorial education learn learning
school university college
student pupil
research paper publication journal study scholar
math calculate compute calculation
sum add addition plus
subtract minus difference
multiply multiplication product times
divide division quotient
average mean
probability odds chance likelihood
equation formula
number integer digit
random generate
create make build generate
delete remove erase drop
update modify change edit alter
search find lookup query look
show display list view
get retrieve fetch obtain
check verify validate
compare comparison versus
convert conversion transform
analyze analysis examine evaluate assess
estimate predict forecast projection
recommend suggest recommendation suggestion advice
rate rating review
start begin launch initiate
stop end cancel terminate
close shut
open unlock
download export
upload import
save store
share post publish
file document
pdf document
folder directory
picture draw paint illustration art artwork
design logo graphic
chart graph plot diagram visualization visualize
website web site page webpage url
link url
domain dns whois
code program programming script
bug error issue defect
software app application
repo repository github git
database sql table
server host machine
user account profile
login sign authenticate authentication
password credential
register registration signup
twitter tweet
follow follower
friend contact
gift present
horoscope astrology zodiac
law legal lawyer attorney court
crime criminal police
insurance policy coverage
government politics political election
pet dog cat animal
plant flower garden
baby child kid
woman man gender
wedding marriage
religion bible quran prayer
joke humor funny
quote saying quotation
color colour
size dimension measurement
weight mass kilogram
unit ounce gram liter cup pound inch foot meter
speed velocity
height tall
energy power electricity
light lamp bulb
temperature thermostat celsius fahrenheit
smart device
noise sound audio
voice speech
space planet astronomy nasa star
earthquake seismic
history historical past
population demographic census
barcode qr
encrypt encryption cipher
random dice
secure security safety
fast quick rapid
cheap cheapest affordable budget discount deal coupon
best top popular trending
new latest recent current update
old vintage antique
help assist support
"""

CONCEPTS: tuple[tuple[str, ...], ...] = tuple(
    tuple(line.split()) for line in _CONCEPTS.strip().splitlines()
)
"""Groups of words with similar meaning: a query with one of them matches the others."""
